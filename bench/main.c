/*
 * chunkkv-bench: how fast the CPU device scores.
 *
 *     chunkkv-bench score|peaks|linear|memory|paths [--tokens N,N...] [--threads N] [--repeats N] [--pool MIB] [--job N]
 *                   [--scratch KIB] [--extra] [--only TEXT] [--check]
 *
 * Lines of JSON on standard output, for bench/report.py to gather; a wrong
 * result ends it with status 1 before anything of that case is timed.  A
 * program of its own, and not a client, because paths are forced here and
 * measured beside one another.
 */
#include "base/macros.h"
#include "bench/linear.h"
#include "bench/measure.h"
#include "bench/memory.h"
#include "bench/peaks.h"
#include "bench/score.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTHS_MAX = 16, KIB = 1 << 10, MIB = 1 << 20 };

struct settings {
        uint32_t tokens[LENGTHS_MAX], length_count, threads, pool_mib, scratch_kib;
        bool extra;
        const char *only;       /* part of a case's text; NULL: all */
        struct bench_options score;
};

static int usage(void) {
        (void)fprintf(stderr, "usage: chunkkv-bench score|peaks|linear|memory|paths [--tokens N,N...] [--threads N] [--repeats N] "
                              "[--pool MIB] [--job TOKENS] [--scratch KIB] [--extra] [--only TEXT] [--check]\n");
        return EXIT_FAILURE;
}

static bool parse_tokens(const char *text, struct settings *settings) {
        char *end;

        do {
                unsigned long tokens = strtoul(text, &end, 10);

                if (end == text || tokens < 1024 || tokens > 1 << 20 || settings->length_count == LENGTHS_MAX)
                        return false;
                settings->tokens[settings->length_count++] = (uint32_t)tokens;
                text = end + 1;
        } while (*end == ',');
        return *end == 0;
}

/* Return: false if the words are none of the usage */
static bool parse(int argc, char **argv, struct settings *settings) {
        static const struct option options[] = {
                { "tokens", required_argument, NULL, 't' }, { "threads", required_argument, NULL, 'n' },
                { "repeats", required_argument, NULL, 'r' }, { "pool", required_argument, NULL, 'p' },
                { "job", required_argument, NULL, 'j' }, { "extra", no_argument, NULL, 'x' },
                { "scratch", required_argument, NULL, 's' }, { "check", no_argument, NULL, 'c' },
                { "only", required_argument, NULL, 'o' }, { NULL, 0, NULL, 0 },
        };

        uint32_t seen = 0;      /* a bit for each option: of two values nobody knows which was meant */

        for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
                uint32_t number = optarg ? (uint32_t)strtoul(optarg, NULL, 10) : 0;

                if (o == '?' || (seen >> (o - 'a') & 1) || (o == 't' && !parse_tokens(optarg, settings)))
                        return false;
                seen |= 1u << (o - 'a');
                settings->threads = o == 'n' ? number : settings->threads;
                settings->score.repeats = o == 'r' ? number : settings->score.repeats;
                settings->pool_mib = o == 'p' ? number : settings->pool_mib;
                settings->score.job_tokens = o == 'j' ? number : settings->score.job_tokens;
                settings->scratch_kib = o == 's' ? number : settings->scratch_kib;
                settings->only = o == 'o' ? optarg : settings->only;
                settings->extra |= o == 'x';
                settings->score.check |= o == 'c';
        }
        return optind == argc - 1 && settings->threads >= 1 && settings->threads <= BENCH_THREADS_MAX && settings->pool_mib >= 1 &&
               settings->score.repeats >= 1 && settings->score.repeats <= BENCH_REPEATS_MAX;
}

/* The main cases, or all others; at the lengths given, on every path */
static int score(const struct settings *settings, struct bench_pool *pool) {
        struct ckv_cpu_choice *choice;
        int status = EXIT_SUCCESS;
        struct bench_options options = settings->score;

        if (ckv__cpu_choice_new(NULL, &choice) < 0)
                return EXIT_FAILURE;
        for (size_t i = 0; i < bench_case_count; i++) {
                const struct bench_case *c = &bench_cases[i];

                if (c->main == settings->extra || (settings->only && !strstr(c->what, settings->only)))
                        continue;
                if (pool->dtype != c->dtype)
                        bench_pool_fill(pool, c->dtype);
                for (uint32_t k = 0; k < settings->length_count; k++) {
                        options.check = settings->score.check && k == 0;
                        if (!bench_score(c, settings->tokens[k], settings->threads, choice, pool, &options))
                                status = EXIT_FAILURE;
                }
        }
        (void)ckv__cpu_choice_free(choice);
        return status;
}

/* One profile of each model */
static void memory(const struct settings *settings, const struct bench_pool *pool) {
        for (size_t i = 0; i < bench_case_count; i++)
                if (bench_cases[i].main && strcmp(bench_cases[i].profile, "default") == 0)
                        bench_memory(&bench_cases[i], settings->tokens[0], settings->threads, (uint64_t)settings->scratch_kib * KIB, pool);
}

int main(int argc, char **argv) {
        struct settings settings = {
                .threads = bench_cpus(), .pool_mib = 640, .score = { .repeats = 9, .job_tokens = 32768 },
        };
        struct bench_pool pool;
        const char *what;

        if (!parse(argc, argv, &settings))
                return usage();
        what = argv[optind];
        if (settings.length_count == 0)
                settings.tokens[settings.length_count++] = 8192;
        if (strcmp(what, "paths") == 0) {
                bench_print_paths();
                return EXIT_SUCCESS;
        }
        pool = (struct bench_pool){ .bytes = bench_alloc((size_t)settings.pool_mib * MIB), .size = (size_t)settings.pool_mib * MIB };
        bench_pool_fill(&pool, CKV_DTYPE_BF16);
        if (strcmp(what, "score") == 0)
                return score(&settings, &pool);
        if (strcmp(what, "peaks") == 0)
                bench_peaks(settings.threads, settings.score.repeats, &pool);
        else if (strcmp(what, "linear") == 0)
                bench_linear(&bench_cases[0], settings.tokens[0], settings.threads, settings.score.repeats, &pool);
        else if (strcmp(what, "memory") == 0)
                memory(&settings, &pool);
        else
                return usage();
        return EXIT_SUCCESS;
}
