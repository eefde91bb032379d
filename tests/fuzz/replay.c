/*
 * Runs a fuzz target without libFuzzer, so that every build of every compiler
 * replays the corpora: all files of tests/fuzz/corpus/NAME, NAME from the name
 * of this program (test_fuzz_NAME), then simple changes to them from a fixed
 * seed (flipped bits, cut tails, doubled and zeroed stretches, numbers that
 * are often wrong).  What libFuzzer finds beyond that becomes a file of the
 * corpus.
 *
 * As a program: without arguments as above; with files or folders, those.
 */
#include "tests/fuzz/fuzz.h"

#include "base/clock.h"
#include "base/macros.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>

enum { INPUT_MAX = 1 << 20, CHANGES_EACH = 200 };
#define CHANGING_NSEC (2 * CKV_NSEC_PER_SEC)

static uint64_t state = 1;
static uint64_t executions;

static uint32_t random_below(uint32_t limit) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
        return (uint32_t)((state >> 33) % limit);
}

/* change() - one simple change, in place or shorter. Return: the new size. */
static size_t change(uint8_t *bytes, size_t size) {
        static const uint64_t wrong[] = { 0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX };
        size_t at, length;

        if (size == 0)
                return 0;
        at = random_below((uint32_t)size);
        length = random_below((uint32_t)(size - at)) + 1;
        switch (random_below(5)) {
        case 0:
                bytes[at] ^= (uint8_t)(1u << random_below(8));
                return size;
        case 1:
                return at;
        case 2:
                memset(bytes + at, 0, length);
                return size;
        case 3:
                memmove(bytes + at, bytes, length < size - at ? length : size - at);
                return size;
        default:
                length = (size_t)1 << random_below(4);
                memcpy(bytes + at, &wrong[random_below(CKV_ARRAY_SIZE(wrong))], length < size - at ? length : size - at);
                return size;
        }
}

static void run(const uint8_t *bytes, size_t size) {
        /* exactly as long as the input, so that a sanitizer sees one byte too far */
        uint8_t *exact = malloc(size + (size == 0));

        fuzz_assert(exact);
        if (size)
                memcpy(exact, bytes, size);
        (void)LLVMFuzzerTestOneInput(exact, size);
        free(exact);
        executions++;
}

static void replay_file(const char *path, uint64_t until_nsec) {
        static uint8_t original[INPUT_MAX], changed[INPUT_MAX];
        FILE *file = fopen(path, "rb");
        size_t size;

        if (!file) {
                (void)fprintf(stderr, "%s: %s\n", path, strerror(errno));
                exit(EXIT_FAILURE);
        }
        size = fread(original, 1, sizeof(original), file);
        (void)fclose(file);
        run(original, size);
        for (int i = 0; i < CHANGES_EACH && ckv_now_nsec() < until_nsec; i++) {
                size_t now = size;

                memcpy(changed, original, size);
                for (uint32_t k = random_below(4) + 1; k > 0; k--)
                        now = change(changed, now);
                run(changed, now);
        }
}

static void replay_folder(const char *path) {
        struct dirent **entries;
        int count = scandir(path, &entries, NULL, alphasort);
        uint64_t until = ckv_now_nsec() + CHANGING_NSEC;

        if (count < 0) {
                (void)fprintf(stderr, "%s: %s\n", path, strerror(errno));
                exit(EXIT_FAILURE);
        }
        for (int i = 0; i < count; i++) {
                char file[4096];

                if (entries[i]->d_name[0] != '.') {
                        (void)snprintf(file, sizeof(file), "%s/%s", path, entries[i]->d_name);
                        replay_file(file, until);
                }
                free(entries[i]);
        }
        free(entries);
}

int main(int argc, char *argv[]) {
        const char *name = strstr(argv[0], "test_fuzz_");
        char folder[256];
        struct stat st;

        for (int i = 1; i < argc; i++)
                if (stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode))
                        replay_folder(argv[i]);
                else
                        replay_file(argv[i], 0);
        if (argc == 1) {
                if (!name) {
                        (void)fprintf(stderr, "name a file or a folder\n");
                        return EXIT_FAILURE;
                }
                (void)snprintf(folder, sizeof(folder), "tests/fuzz/corpus/%s", name + strlen("test_fuzz_"));
                replay_folder(folder);
        }
        (void)printf("%llu executions\n", (unsigned long long)executions);
        return executions ? EXIT_SUCCESS : EXIT_FAILURE;
}
