/*
 * The scheduler of tests/emu/emu.h: fibers, barriers, shared memory that ends at a guard page and begins as NaN.
 *
 * Compiled without a sanitizer, and with EMU_ASAN or EMU_TSAN where the kernels are compiled with one: it then tells
 * AddressSanitizer of every change of stack, and ThreadSanitizer of fibers and of what barriers order.  x86-64 only,
 * for the dozen lines that change stacks.
 *
 * Blocks run one after another, so a kernel in which a block waits for another hangs here.
 */
#include "tests/emu/runtime.h"

#undef threadIdx
#undef blockIdx
#undef gridDim

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sys/mman.h>
#include <vector>

#ifdef EMU_TSAN
extern "C" {
void *__tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void *);
void __tsan_switch_to_fiber(void *, unsigned);
void *__tsan_get_current_fiber(void);
void __tsan_acquire(void *);
void __tsan_release(void *);
}
#define TSAN(...) __VA_ARGS__
#else
#define TSAN(...)
#endif
#ifdef EMU_ASAN
extern "C" {
void __sanitizer_start_switch_fiber(void **, const void *, size_t);
void __sanitizer_finish_switch_fiber(void *, const void **, size_t *);
}
#define ASAN(...) __VA_ARGS__
#else
#define ASAN(...)
#endif

/* Saves what a call must keep and the stack pointer, and goes on where *to stopped. */
extern "C" void ckv__emu_switch(void **save, void *to);
asm(R"(
        .pushsection .text
        .globl ckv__emu_switch
        .hidden ckv__emu_switch
        .type ckv__emu_switch, @function
ckv__emu_switch:
        push %rbp
        push %rbx
        push %r12
        push %r13
        push %r14
        push %r15
        mov %rsp, (%rdi)
        mov %rsi, %rsp
        pop %r15
        pop %r14
        pop %r13
        pop %r12
        pop %rbx
        pop %rbp
        ret
        .size ckv__emu_switch, .-ckv__emu_switch
        .popsection
)");

namespace emu {

namespace {

constexpr size_t STACK = 64 * 1024, PAGE = 4096;
constexpr uint32_t WARP = 32, THREADS_MOST = 1024, COPIES_MOST = 64;

enum class State { RUNNING, BLOCK, WARP, EXCHANGE, DONE };

struct Fiber {
        void *sp;
        char *stack;
        [[maybe_unused]] void *tsan, *asan;
        Index index;
        State state;
        int line;               /* of the __syncthreads it waits at */
        uint64_t shown;         /* what a shuffle gives to the others */
        Words words;            /* the same of mma and ldmatrix */
        Copy copies[COPIES_MOST];       /* begun, not yet made */
        uint32_t copy_count;
};

std::mutex one_launch;
std::vector<Fiber> fibers;
std::vector<char *> stacks;     /* kept from launch to launch */
uint32_t current, seed = 1;
ckv_emu_order order = CKV_EMU_ASCENDING;
bool late;                      /* copies are made when they are waited for */
void *scheduler_sp;
[[maybe_unused]] void *scheduler_tsan, *scheduler_asan;
[[maybe_unused]] const void *scheduler_stack;
[[maybe_unused]] size_t scheduler_bytes;
void (*entry)(const void *);
const void *entry_argument;
char *shared;
Index block, grid;

/* Addresses that stand for what a meeting orders. */
[[maybe_unused]] char begin_of_launch, begin_of_block, end_of_launch, block_meeting, warp_meeting[THREADS_MOST / WARP];

char *pages(size_t bytes) {
        void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (at == MAP_FAILED) {
                perror("emulator: mmap");
                abort();
        }
        return static_cast<char *>(at);
}

/* New pages: ThreadSanitizer forgets who used these for an earlier block, which has another memory on a GPU. */
[[maybe_unused]] void forget(char *at, size_t bytes) {
        if (bytes > 0 && mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
                abort();
}

void to_scheduler() {
        Fiber &f = fibers[current];

        ASAN(__sanitizer_start_switch_fiber(f.state == State::DONE ? nullptr : &f.asan, scheduler_stack, scheduler_bytes);)
        TSAN(__tsan_switch_to_fiber(scheduler_tsan, 1);)
        ckv__emu_switch(&f.sp, scheduler_sp);
        ASAN(__sanitizer_finish_switch_fiber(f.asan, &scheduler_stack, &scheduler_bytes);)
}

void fiber_main() {
        ASAN(__sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_bytes);)
        TSAN(__tsan_acquire(&begin_of_launch);)
        TSAN(__tsan_acquire(&begin_of_block);)
        entry(entry_argument);
        TSAN(__tsan_release(&end_of_launch);)
        fibers[current].state = State::DONE;
        to_scheduler();
        abort();
}

void resume(uint32_t i) {
        current = i;
        ASAN(__sanitizer_start_switch_fiber(&scheduler_asan, fibers[i].stack, STACK);)
        TSAN(__tsan_switch_to_fiber(fibers[i].tsan, 1);)
        ckv__emu_switch(&scheduler_sp, fibers[i].sp);
        ASAN(__sanitizer_finish_switch_fiber(scheduler_asan, nullptr, nullptr);)
}

void start(uint32_t i) {
        Fiber &f = fibers[i];
        void **sp;

        if (stacks.size() <= i)
                stacks.push_back(pages(STACK));
        f = Fiber();
        f.stack = stacks[i];
        f.index = { i, 0, 0 };
        f.state = State::RUNNING;
        TSAN(forget(f.stack + STACK - 2 * PAGE, 2 * PAGE);)      /* no kernel's frames reach further down */
        TSAN(f.tsan = __tsan_create_fiber(1);)
        sp = reinterpret_cast<void **>(f.stack + STACK);
        *--sp = nullptr;
        *--sp = reinterpret_cast<void *>(fiber_main);
        for (int k = 0; k < 6; k++)
                *--sp = nullptr;
        f.sp = sp;
}

void wait(State state, [[maybe_unused]] void *ordered_by) {
        TSAN(if (ordered_by) __tsan_release(ordered_by);)
        fibers[current].state = state;
        to_scheduler();
        TSAN(if (ordered_by) __tsan_acquire(ordered_by);)
}

void arrange(std::vector<uint32_t> &turn) {
        if (order == CKV_EMU_DESCENDING)
                std::sort(turn.rbegin(), turn.rend());
        if (order == CKV_EMU_RANDOM)
                for (size_t i = turn.size(); i > 1; i--) {
                        seed = seed * 1664525U + 1013904223U;
                        std::swap(turn[i - 1], turn[(seed >> 8) % i]);
                }
}

/* Lets every warp go on whose threads, as far as they are not done, wait at the same kind of meeting. */
bool release_warps() {
        bool any = false;

        for (uint32_t first = 0; first < fibers.size(); first += WARP)
                for (State kind : { State::WARP, State::EXCHANGE }) {
                        uint32_t end = std::min<uint32_t>(first + WARP, (uint32_t)fibers.size()), waiting = 0, alive = 0;

                        for (uint32_t i = first; i < end; i++) {
                                alive += fibers[i].state != State::DONE;
                                waiting += fibers[i].state == kind;
                        }
                        if (waiting == 0 || waiting < alive)
                                continue;
                        for (uint32_t i = first; i < end; i++)
                                if (fibers[i].state == kind)
                                        fibers[i].state = State::RUNNING;
                        any = true;
                }
        return any;
}

[[noreturn]] void divergent(const char *what, uint32_t a, uint32_t b) {
        fprintf(stderr, "emulator: divergent barrier in block (%u,%u,%u): %s (%u, %u)\n", block.x, block.y, block.z, what, a, b);
        abort();
}

/* All threads that are not done wait for their block: it must be at the same place. */
void release_block() {
        int line = 0;

        for (Fiber &f : fibers) {
                if (f.state == State::DONE)
                        continue;
                if (line != 0 && f.line != line)
                        divergent("threads wait at two lines", (uint32_t)line, (uint32_t)f.line);
                line = f.line;
                f.state = State::RUNNING;
        }
}

void run_block(uint32_t threads) {
        std::vector<uint32_t> turn(threads);

        fibers.resize(threads);
        for (uint32_t i = 0; i < threads; i++) {
                start(i);
                turn[i] = i;
        }
        TSAN(__tsan_release(&begin_of_block);)
        for (;;) {
                uint32_t ran = 0, alive = 0, waiting = 0;

                arrange(turn);
                for (uint32_t i : turn)
                        if (fibers[i].state == State::RUNNING) {
                                resume(i);
                                ran++;
                        }
                if (release_warps())
                        continue;
                for (const Fiber &f : fibers) {
                        alive += f.state != State::DONE;
                        waiting += f.state == State::BLOCK;
                }
                if (alive == 0)
                        break;
                if (waiting == alive && alive < threads)
                        divergent("some threads have left the kernel, others wait for them", alive, threads);
                if (waiting == alive)
                        release_block();
                else if (ran == 0)
                        divergent("some threads wait for their block, some for their warp", waiting, alive);
        }
        TSAN(for (Fiber &f : fibers) __tsan_destroy_fiber(f.tsan);)
}

}

Index thread_index() {
        return fibers[current].index;
}

const Index &block_index() {
        return block;
}

const Index &grid_size() {
        return grid;
}

void *shared_memory() {
        return shared;
}

void block_barrier(int line) {
        fibers[current].line = line;
        wait(State::BLOCK, &block_meeting);
}

void warp_barrier() {
        wait(State::WARP, &warp_meeting[current / WARP]);
}

uint64_t exchange(uint64_t mine, uint32_t lane) {
        uint64_t got;

        fibers[current].shown = mine;
        wait(State::EXCHANGE, nullptr);
        got = fibers[current / WARP * WARP + lane % WARP].shown;
        wait(State::EXCHANGE, nullptr);         /* nobody shows the next value before all have this one */
        return got;
}

void show(const uint32_t *words, uint32_t count) {
        /* not by memcpy(), which ThreadSanitizer would take for an access of memory: these stand for registers */
        for (uint32_t i = 0; i < count; i++)
                const_cast<volatile uint32_t *>(fibers[current].words.word)[i] = words[i];
        wait(State::EXCHANGE, nullptr);
}

Words shown(uint32_t lane) {
        return fibers[current / WARP * WARP + lane % WARP].words;
}

void seen() {
        wait(State::EXCHANGE, nullptr);
}

bool remember(const Copy &copy) {
        Fiber &f = fibers[current];

        if (!late || f.copy_count == COPIES_MOST)
                return false;
        f.copies[f.copy_count++] = copy;
        return true;
}

bool recall(Copy *ret_copy) {
        Fiber &f = fibers[current];

        if (f.copy_count == 0)
                return false;
        *ret_copy = f.copies[--f.copy_count];
        return true;
}

void unaligned(const void *at) {
        if (reinterpret_cast<uintptr_t>(at) % 16 == 0)
                return;
        fprintf(stderr, "emulator: unaligned: %p is no multiple of 16\n", at);
        abort();
}

void launch(const uint32_t grid_dim[3], const uint32_t block_dim[3], size_t shared_bytes, void (*kernel)(const void *),
            const void *parameters) {
        std::lock_guard<std::mutex> lock(one_launch);
        size_t room = (shared_bytes + PAGE - 1) / PAGE * PAGE;
        char *memory = pages(room + PAGE);
        std::vector<uint32_t> turn((size_t)grid_dim[0] * grid_dim[1] * grid_dim[2]);

        if (block_dim[0] == 0 || block_dim[0] > THREADS_MOST || block_dim[1] != 1 || block_dim[2] != 1) {
                fprintf(stderr, "emulator: a block of %u x %u x %u threads\n", block_dim[0], block_dim[1], block_dim[2]);
                abort();
        }
        entry = kernel;
        entry_argument = parameters;
        grid = { grid_dim[0], grid_dim[1], grid_dim[2] };
        shared = memory + (room - shared_bytes);        /* ends at the guard page */
        mprotect(memory + room, PAGE, PROT_NONE);
        TSAN(scheduler_tsan = __tsan_get_current_fiber();)
        TSAN(__tsan_release(&begin_of_launch);)
        for (size_t i = 0; i < turn.size(); i++)
                turn[i] = (uint32_t)i;
        arrange(turn);
        for (uint32_t i : turn) {
                block = { i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y };
                TSAN(forget(memory, room);)
                /* NaN; not by memset(), which ThreadSanitizer would take for an access of this thread */
                for (size_t b = 0; b < shared_bytes; b++)
                        const_cast<volatile char *>(shared)[b] = static_cast<char>(0xff);
                run_block(block_dim[0]);
        }
        TSAN(__tsan_acquire(&end_of_launch);)
        munmap(memory, room + PAGE);
}

}

void ckv_emu_set_order(enum ckv_emu_order new_order, uint32_t new_seed) {
        std::lock_guard<std::mutex> lock(emu::one_launch);

        emu::order = new_order;
        emu::seed = new_seed;
        emu::late = new_seed % 2;
}
