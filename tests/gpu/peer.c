/*
 * Other processes: this program again, by fork and exec, as CUDA wants it, with
 * another row and a pipe each way.  One exports memory and holds it, another
 * keeps the device busy.
 */
#include "tests/gpu/gpu.h"
#include "tests/gpu/probes.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void become(const struct gpu *gpu, const char *row, const char *argument, uint32_t uid) {
        static char name[] = "gpu-check", driver[] = "--driver", probes[] = "--probes", self[4096];
        char *arguments[8] = { name };
        ssize_t size = readlink("/proc/self/exe", self, sizeof(self) - 1);
        int n = 1;

        if (size <= 0 || (uid > 0 && (setgroups(0, NULL) < 0 || setgid(uid) < 0 || setuid(uid) < 0)))
                _exit(126);
        self[size] = '\0';
        /* after the change of user, which would undo it */
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (gpu->library) {
                arguments[n++] = driver;
                arguments[n++] = strdup(gpu->library);
        }
        if (gpu->probes_path) {
                arguments[n++] = probes;
                arguments[n++] = strdup(gpu->probes_path);
        }
        arguments[n++] = strdup(row);
        arguments[n++] = strdup(argument);
        (void)execv(self, arguments);
        _exit(127);
}

/* Go on as process 1 of a namespace of its own, while this one waits for it. */
static void as_first_process(void) {
        int status = 0;
        pid_t child;

        if (unshare(CLONE_NEWPID) < 0)
                _exit(124);
        child = fork();
        if (child == 0)
                return;
        /* held by the child alone, or nobody would see their end */
        (void)close(STDIN_FILENO);
        (void)close(STDOUT_FILENO);
        _exit(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 123);
}

struct gpu_peer gpu_peer_start(const struct gpu *gpu, const char *row, const char *argument, uint32_t uid, bool new_pids) {
        int up[2], down[2];
        struct gpu_peer peer;

        (void)fflush(stdout);
        if (pipe2(up, O_CLOEXEC) < 0 || pipe2(down, O_CLOEXEC) < 0)
                exit(EXIT_FAILURE);
        peer = (struct gpu_peer){ .pid = fork(), .in = up[0], .out = down[1] };
        if (peer.pid == 0) {
                if (dup2(down[0], STDIN_FILENO) < 0 || dup2(up[1], STDOUT_FILENO) < 0)
                        _exit(125);
                (void)close(up[0]);
                (void)close(down[1]);
                if (new_pids)
                        as_first_process();
                become(gpu, row, argument, uid);
        }
        (void)close(up[1]);
        (void)close(down[0]);
        return peer;
}

bool gpu_peer_handle(const struct gpu_peer *peer, CUipcMemHandle *ret_handle) {
        size_t have = 0;

        while (have < sizeof(*ret_handle)) {
                ssize_t n = read(peer->in, (char *)ret_handle + have, sizeof(*ret_handle) - have);

                if (n <= 0)
                        break;
                have += (size_t)n;
        }
        return have == sizeof(*ret_handle);
}

void gpu_peer_say(const struct gpu_peer *peer) {
        char text[512];
        ssize_t n;

        while ((n = read(peer->in, text, sizeof(text))) > 0)
                (void)fwrite(text, 1, (size_t)n, stdout);
        (void)fflush(stdout);
}

int gpu_peer_end(struct gpu_peer *peer, bool killed) {
        int status = 0;

        (void)close(peer->out);
        if (killed)
                (void)kill(peer->pid, SIGKILL);
        while (waitpid(peer->pid, &status, 0) < 0 && errno == EINTR)
                ;
        (void)close(peer->in);
        return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void gpu_peer_export(struct gpu *gpu, const char *argument) {
        size_t bytes = strtoull(argument, NULL, 10);
        CUdeviceptr at = gpu_alloc(gpu, bytes);
        static const char mark[] = "chunkkvd";
        CUipcMemHandle handle;
        char end;

        gpu_upload(gpu, at, mark, sizeof(mark));
        GPU(gpu, cuIpcGetMemHandle, &handle, at);
        if (write(STDOUT_FILENO, &handle, sizeof(handle)) != (ssize_t)sizeof(handle))
                exit(EXIT_FAILURE);
        (void)!read(STDIN_FILENO, &end, 1);
        GPU(gpu, cuMemFree_v2, at);
}

void gpu_peer_burn(struct gpu *gpu, const char *argument) {
        CUfunction copy = gpu_function(gpu, "probe_copy");
        const size_t bytes = (size_t)1 << 28;
        struct probe_copy p = { .vectors = bytes / 16 };

        (void)argument;
        if (!copy)
                exit(77);
        p.from = gpu_alloc(gpu, bytes);
        p.to = gpu_alloc(gpu, bytes);
        (void)!write(STDOUT_FILENO, "b", 1);
        for (;;) {
                for (int i = 0; i < 16; i++)
                        gpu_launch(gpu, copy, 8 * (uint32_t)gpu->processors, 256, &p);
                GPU(gpu, cuStreamSynchronize, gpu->stream);
        }
}
