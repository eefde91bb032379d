/*
 * chunkkvctl: ask a chunkkvd from the command line.
 *
 *     chunkkvctl ping      is it there?
 *     chunkkvctl status    what is it, what do I hold of its budgets, and which code scores what?
 *     chunkkvctl plan      which rows would it keep of these tensors?
 *     chunkkvctl compress  have it keep them alone, and write the file
 *     chunkkvctl explain   write a page that shows which, and why
 *
 * The last three need a daemon and not the daemon: if none runs at the default
 * endpoint they start one for themselves, say so, and take it down again.
 * `ping` and `status` do not, since they would tell of a daemon that nobody
 * has.
 *
 * On SIGINT, SIGTERM and SIGHUP the private daemon is told to end.  That ends
 * whatever this process waits for, so the usual way out does the rest; a file
 * that is being written then is not put in its place.  A signal that comes when
 * all is done, the file in its place, changes nothing: the status is 0.
 */
#include "base/macros.h"
#include "clients/c/include/chunkkv.h"
#include "tools/compress.h"
#include "tools/explain.h"
#include "tools/files.h"
#include "tools/layers.h"
#include "tools/plan.h"
#include "tools/print.h"
#include "tools/private.h"
#include "tools/settings.h"
#include "tools/source.h"
#include "tools/tokens.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static struct ckv_private private_daemon;
static volatile sig_atomic_t stop_signal;

static void on_signal(int number) {
        stop_signal = number;
        if (private_daemon.pid > 0)
                (void)kill(private_daemon.pid, SIGTERM);
}

static void signals_catch(void) {
        static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
        struct sigaction action = { .sa_handler = on_signal };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(numbers); i++)
                (void)sigaction(numbers[i], &action, NULL);
}

/* What went wrong, with the option that it is about in front. */
static enum ckv_exit complain(const struct ckv_settings *settings, const struct chunkkv_error *error) {
        const char *typed = NULL, *option = ckv_settings_option_find(settings, error->field, &typed);

        (void)fprintf(stderr, "chunkkvctl: ");
        if (option)
                (void)fprintf(stderr, "--%s%s%s: ", option, typed ? " " : "", typed ? typed : "");
        (void)fprintf(stderr, "%s", error->detail[0] ? error->detail : "refused");
        if (error->error == -EREMOTEIO)
                (void)fprintf(stderr, " (%s%s%s%s%s)", chunkkv_code_to_string(error->code), error->slot ? " of " : "",
                              error->slot ? ckv_print_slot(error->slot) : "", error->field[0] ? ", " : "",
                              error->field);
        (void)fprintf(stderr, "\n");
        if (error->error == -EREMOTEIO && error->code != CHUNKKV_CODE_EXPIRED && error->code != CHUNKKV_CODE_DRAINING)
                return CKV_EXIT_REFUSED;
        if (error->error == -E2BIG || error->error == -EMSGSIZE || error->error == -ENAMETOOLONG ||
            error->error == -EINVAL)
                return CKV_EXIT_INPUT;
        return CKV_EXIT_NO_DAEMON;
}

static int daemon_start(const struct ckv_settings *settings, struct chunkkv_client **ret_client,
                        struct chunkkv_error *ret_error) {
        struct chunkkv_options options = {
                .name = "chunkkvctl/" CKV_VERSION, .timeout_ms = settings->timeout_ms, .control_slots = CHUNKKV_NO_SLOTS,
        };
        char why[CKV_PRIVATE_WHY];
        int r;

        (void)fprintf(stderr, "chunkkvctl: no chunkkvd at %s, starting a private one for this command\n",
                      chunkkv_default_endpoint());
        signals_catch();
        r = ckv_private_start(settings->timeout_ms, &private_daemon, why);
        /* a signal that came before there was a daemon to tell */
        if (r == 0 && stop_signal) {
                r = -EINTR;
                (void)snprintf(why, sizeof(why), "interrupted");
        }
        if (r) {
                *ret_error = (struct chunkkv_error){ .error = r };
                (void)snprintf(ret_error->detail, sizeof(ret_error->detail), "%.200s", why);
                return r;
        }
        options.endpoint = private_daemon.endpoint;
        return chunkkv_connect(&options, ret_client, ret_error);
}

static int client_open(const struct ckv_settings *settings, struct chunkkv_client **ret_client,
                       struct chunkkv_error *ret_error) {
        /* no slots: what the daemon moves is a copy of a file, and not worth finishing */
        struct chunkkv_options options = {
                .endpoint = settings->endpoint, .name = "chunkkvctl/" CKV_VERSION, .timeout_ms = settings->timeout_ms,
                .control_slots = CHUNKKV_NO_SLOTS,
        };
        const char *environment = getenv("CHUNKKV_ENDPOINT");
        bool named = settings->endpoint || (environment && *environment);
        int r;

        r = chunkkv_connect(&options, ret_client, ret_error);
        if ((r == -ENOENT || r == -ECONNREFUSED) && !named && (settings->command & CKV_COMMAND_TENSORS))
                return daemon_start(settings, ret_client, ret_error);
        return r;
}

/* What a command on tensors works with. */
struct work {
        struct ckv_source source;
        struct ckv_tokens tokens;
        struct ckv_layer *layers;       /* [count] */
        size_t count;
        struct ckv_plan plan;
        struct ckv_output output;
};

static void work_deinit(struct work *work) {
        ckv_output_close(&work->output);
        ckv_plan_deinit(&work->plan);
        free(work->layers);
        ckv_tokens_deinit(&work->tokens);
        ckv_source_close(&work->source);
}

/* Prints what is wrong with a file. Return: false. */
static bool complain_of(const char *path, const char *why) {
        (void)fprintf(stderr, "chunkkvctl: %s: %s\n", path, why);
        return false;
}

/* Everything that can be found wrong before a daemon is asked. */
static bool work_load(const struct ckv_settings *settings, struct work *work) {
        const char *const inputs[] = {
                settings->path, settings->key, settings->query, settings->value, settings->tokens,
        };
        const struct ckv_layers_wanted wanted = {
                .names = settings->names, .numbers = settings->layers, .count = settings->layer_count,
                .value = settings->command == CKV_COMMAND_COMPRESS || ckv_plan_needs_value(&settings->policy),
                .query = ckv_plan_needs_query(&settings->policy),
                .window = settings->policy.window, .query_rows = settings->query_rows,
        };
        char why[CKV_SAFETENSORS_WHY];

        static_assert(CKV_SAFETENSORS_WHY == CKV_FILES_WHY, "one place for sentences of both");
        if (ckv_source_open(settings, wanted.query, wanted.value, &work->source, why) ||
            ckv_layers_load(work->source.file, &wanted, &work->layers, &work->count, why) ||
            ckv_compress_check(work->source.file, work->layers, work->count, why))
                return complain_of(work->source.label, why);
        if (settings->tokens && (ckv_tokens_load(settings->tokens, &work->tokens, why) ||
                                 ckv_explain_check(&work->tokens, work->layers, work->count, why)))
                return complain_of(settings->tokens, why);
        if (settings->out && ckv_output_check(settings->out, settings->force, inputs, CKV_ARRAY_SIZE(inputs), why))
                return complain_of(settings->out, why);
        return true;
}

static bool work_write(const struct ckv_settings *settings, struct work *work, struct ckv_written *ret_written) {
        char why[CKV_FILES_WHY] = "no memory to write it";
        int r;

        signals_catch();
        r = ckv_output_open(settings->out, settings->force, &work->output, why);
        if (r == 0 && settings->command == CKV_COMMAND_COMPRESS)
                r = ckv_compress_write(work->source.file, settings, work->layers, &work->plan, &work->output);
        else if (r == 0)
                r = ckv_explain_write(settings, work->source.label, &work->plan, &work->tokens, &work->output, why);
        if (r == 0 && stop_signal) {
                r = -EINTR;
                (void)snprintf(why, sizeof(why), "interrupted, and not written");
        }
        if (r == 0)
                r = ckv_output_commit(&work->output, &ret_written->bytes, why);
        if (r)
                return complain_of(settings->out, why);
        ret_written->path = settings->out;
        return true;
}

static enum ckv_exit run_tensors(const struct ckv_settings *settings) {
        _cleanup_(work_deinit) struct work work = { 0 };
        struct ckv_written written = { 0 };
        struct chunkkv_client *client = NULL;
        struct chunkkv_error error;
        bool printed;
        int r;

        if (!work_load(settings, &work))
                return CKV_EXIT_INPUT;
        r = client_open(settings, &client, &error);
        if (r == 0)
                r = ckv_plan_run(client, settings, work.layers, work.count, &work.plan, &error);
        client = chunkkv_close(client);
        if (r)
                return complain(settings, &error);
        if (settings->out && !work_write(settings, &work, &written))
                return CKV_EXIT_INPUT;
        if (settings->command == CKV_COMMAND_EXPLAIN && !settings->json)
                printed = ckv_print_written(&written);
        else
                printed = ckv_print_plan(&work.plan, &written, settings->json);
        return printed ? CKV_EXIT_OK : CKV_EXIT_INPUT;
}

static enum ckv_exit run_question(const struct ckv_settings *settings) {
        struct ckv_state state = { 0 };
        struct chunkkv_client *client = NULL;
        struct chunkkv_error error;
        struct chunkkv_pong pong;
        bool written;
        int r;

        r = client_open(settings, &client, &error);
        if (r)
                return complain(settings, &error);
        if (settings->command == CKV_COMMAND_PING)
                r = chunkkv_ping(client, settings->timeout_ms, &pong, &error);
        else
                r = chunkkv_budgets(client, settings->timeout_ms, state.budgets, &state.budget_count, &error);
        if (r == 0 && settings->command != CKV_COMMAND_PING)
                r = chunkkv_code_paths(client, settings->timeout_ms, state.paths, &state.path_count, &error);
        if (r) {
                client = chunkkv_close(client);
                return complain(settings, &error);
        }
        if (settings->command == CKV_COMMAND_PING)
                written = ckv_print_pong(chunkkv_info(client), &pong, settings->json);
        else
                written = ckv_print_status(chunkkv_info(client), &state, settings->json);
        client = chunkkv_close(client);
        return written ? CKV_EXIT_OK : CKV_EXIT_INPUT;
}

int main(int argc, char **argv) {
        struct ckv_settings settings;
        char why[CKV_SETTINGS_WHY];
        enum ckv_exit status = CKV_EXIT_OK;

        if (!ckv_settings_parse(argc, argv, &settings, why)) {
                (void)fprintf(stderr, "chunkkvctl: %s\n", why);
                status = CKV_EXIT_INPUT;
        } else if (settings.version) {
                printf("chunkkvctl " CKV_VERSION "\n");
        } else if (settings.help) {
                ckv_settings_help(stdout, settings.command);
        } else if (settings.command & CKV_COMMAND_TENSORS) {
                status = run_tensors(&settings);
        } else {
                status = run_question(&settings);
        }
        ckv_settings_deinit(&settings);
        ckv_private_stop(&private_daemon);
        /* whoever started us learns that a signal ended us, not a failure; one that came too late ended nothing */
        return stop_signal && status != CKV_EXIT_OK ? 128 + stop_signal : (int)status;
}
