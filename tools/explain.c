/*
 * tools/explain.html is the page, with @@slots@@.  Here is what goes into them:
 * words and tables as HTML, so that the page says everything without its
 * script, and one block of JSON that is nothing but numbers.
 *
 * Text of others (pieces, names of files, words of the command line) goes
 * through ckv_html_text() and nowhere into the script.
 */
#include "tools/explain.h"

#include "base/macros.h"
#include "tools/explain_data.h"
#include "tools/explain_template.h"
#include "tools/html.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

static void put_title(const struct ckv_page *page, FILE *to) {
        const char *slash = strrchr(page->label, '/');

        ckv_html_text(to, slash ? slash + 1 : page->label);
}

static void put_summary(const struct ckv_page *page, FILE *to) {
        const struct ckv_plan *plan = page->plan;
        uint64_t least = UINT64_MAX, most = 0;
        double low = 1, high = 0;
        bool scored = true;

        for (size_t i = 0; i < plan->layer_count; i++) {
                double mass = ckv_page_mass(page, i);

                least = CKV_MIN(least, plan->layers[i].kept_count);
                most = CKV_MAX(most, plan->layers[i].kept_count);
                scored = scored && isfinite(mass);
                low = CKV_MIN(low, mass);
                high = CKV_MAX(high, mass);
        }
        (void)fprintf(to, "%" PRIu64, least);
        if (most > least)
                (void)fprintf(to, " to %" PRIu64, most);
        (void)fprintf(to, " of %" PRIu32 " rows stay in %s%zu layer%s", page->grid.rows,
                      plan->layer_count > 1 ? "each of " : "", plan->layer_count, plan->layer_count > 1 ? "s" : "");
        if (scored)
                (void)fprintf(to, plan->layer_count > 1 ? ", and with them %.1f to %.1f %% of the scored mass."
                              : ", and with them %.1f %% of the scored mass.", 100 * low, 100 * high);
        else
                (void)fprintf(to, ".");
}

/* Why layers have no scores, if some have none. */
static void put_notice(const struct ckv_page *page, FILE *to) {
        static const char *const words[] = {
                [CHUNKKV_KEPT_NOT_ALL] = "the protected rows alone use up the budget",
                [CHUNKKV_KEPT_EMPTY] = "there are no rows",
                [CHUNKKV_KEPT_SHORT] = "the text is too short (min_tokens), all of it is kept",
                [CHUNKKV_KEPT_FITS] = "all rows fit the budget",
                [CHUNKKV_KEPT_PROTECTED] = "all rows are protected",
        };
        const struct ckv_plan_layer *layer = &page->plan->layers[0];

        if (!layer->scores)
                (void)fprintf(to, "<p class=\"note\">Nothing was scored: %s.</p>",
                              layer->kept_all < CKV_ARRAY_SIZE(words) ? words[layer->kept_all] : "?");
}

/* A word of a command line, quoted for a shell where it needs that. */
static void word_put(const char *word, FILE *to) {
        static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:,=@%";
        bool quoted = !*word || word[strspn(word, plain)];

        (void)fputs(quoted ? " &#39;" : " ", to);
        for (; *word; word++) {
                /* bytes of one character stay together: ckv_html_text() is given all up to the next quote */
                size_t length = strcspn(word, "'");
                char *part = strndup(word, length);

                ckv_html_text(to, part ? part : "");
                free(part);
                word += length;
                if (!*word)
                        break;
                (void)fputs("&#39;\\&#39;&#39;", to);
        }
        (void)fputs(quoted ? "&#39;" : "", to);
}

static void put_command(const struct ckv_page *page, FILE *to) {
        const struct ckv_settings *settings = page->settings;

        (void)fputs("chunkkvctl explain", to);
        if (settings->path)
                word_put(settings->path, to);
        for (size_t i = 0; i < ckv_option_count; i++) {
                const struct ckv_option *option = &ckv_options[i];

                if (!settings->typed[i] || option->kind == CKV_OPTION_LAYER || option->kind == CKV_OPTION_SPAN)
                        continue;
                (void)fprintf(to, " --%s", option->name);
                if (option->kind != CKV_OPTION_FLAG)
                        word_put(settings->typed[i], to);
        }
        for (size_t i = 0; i < settings->layer_count; i++)
                (void)fprintf(to, " --layer %" PRIu32, settings->layers[i]);
        for (size_t i = 0; i < settings->protect_count; i++)
                (void)fprintf(to, " --protect %" PRIu32 ":%" PRIu32, settings->protect[i].first,
                              settings->protect[i].first + settings->protect[i].count);
}

static void put_policy(const struct ckv_page *page, FILE *to) {
        struct ckv_parameter parameter;
        size_t index = 0;

        for (size_t i = 0; i < ckv_option_count; i++) {
                if (!ckv_options[i].member || !ckv_settings_parameter(&page->plan->policy, index++, &parameter))
                        continue;
                /* a 0 says "none" there, except in numbers that may really be 0 */
                if (!parameter.present ||
                    (!parameter.word && parameter.number == 0 && ckv_options[i].kind != CKV_OPTION_COUNT))
                        continue;
                (void)fprintf(to, "<div><dt>%s</dt><dd>", parameter.name);
                if (parameter.word)
                        (void)fprintf(to, "%s</dd></div>\n", parameter.word);
                else
                        (void)fprintf(to, "%g</dd></div>\n", parameter.number);
        }
}

static void put_chunks(const struct ckv_page *page, FILE *to) {
        const struct chunkkv_policy *policy = &page->plan->policy;
        const char *which = page->grid.guards_scored ? "" : " with rows that are not protected";

        if (policy->selector == CHUNKKV_SELECTOR_TOKEN || policy->selector == CHUNKKV_SELECTOR_H2O)
                (void)fprintf(to, "A cell is a row, %zu in all.", page->grid.unit_count);
        else if (policy->selector == CHUNKKV_SELECTOR_PAGE)
                (void)fprintf(to, "A cell is a block of %" PRIu32 " rows, %zu%s.", policy->page, page->grid.unit_count,
                              which);
        else if (policy->selector == CHUNKKV_SELECTOR_CHUNK_AT)
                (void)fprintf(to, "A cell is a chunk of the lengths given, %zu%s.", page->grid.unit_count, which);
        else
                (void)fprintf(to, "A cell is a chunk of %" PRIu32 " rows, %zu%s.", policy->chunk,
                              page->grid.unit_count, which);
}

static void put_tabs(const struct ckv_page *page, FILE *to) {
        size_t count = page->plan->layer_count;

        if (count > 1)
                (void)fputs("<label><input type=\"radio\" name=\"layer\" value=\"-1\" checked>"
                            "<span>all layers</span></label>\n", to);
        for (size_t i = 0; i < count; i++)
                (void)fprintf(to, "<label><input type=\"radio\" name=\"layer\" value=\"%zu\"%s><span>%s%" PRIu32
                              "</span></label>\n", i, count == 1 ? " checked" : "", count == 1 ? "layer " : "",
                              page->plan->layers[i].number);
}

static void put_guards(const struct ckv_page *page, FILE *to) {
        const struct chunkkv_policy *policy = &page->plan->policy;
        uint32_t prefix = page->settings->protect_prefix;
        size_t spans = page->settings->protect_count;
        const char *before = "";

        if (policy->sinks.value > 0) {
                (void)fprintf(to, "%sfirst %" PRIu32, before, policy->sinks.value);
                before = ", ";
        }
        if (policy->recent.value > 0) {
                (void)fprintf(to, "%snewest %" PRIu32 " rows", before, policy->recent.value);
                before = ", ";
        }
        if (spans > 0) {
                (void)fprintf(to, "%s%zu span%s", before, spans, spans > 1 ? "s" : "");
                before = ", ";
        }
        if (prefix > 0) {
                (void)fprintf(to, "%sshared prefix", before);
                before = ", ";
        }
        if (!*before)
                (void)fputs("none here", to);
}

static void put_text(const struct ckv_page *page, FILE *to) {
        for (size_t i = 0; i < page->tokens->count; i++) {
                (void)fputs("<span>", to);
                /* a row that nothing is seen of could not be pointed at */
                if (*page->tokens->pieces[i])
                        ckv_html_text(to, page->tokens->pieces[i]);
                else
                        (void)fputs("&#x2205;", to);
                (void)fputs("</span>", to);
        }
}

static void meter_put(double part, FILE *to) {
        (void)fprintf(to, "<span class=\"meter\" aria-hidden=\"true\"><i style=\"width:%.1f%%\"></i></span>",
                      100 * part);
}

static void put_layers(const struct ckv_page *page, FILE *to) {
        for (size_t i = 0; i < page->plan->layer_count; i++) {
                const struct ckv_plan_layer *layer = &page->plan->layers[i];
                double mass = ckv_page_mass(page, i);

                (void)fprintf(to, "<tr><td class=\"n\">%" PRIu32 "</td><td>", layer->number);
                meter_put((double)layer->kept_count / page->grid.rows, to);
                (void)fprintf(to, "%" PRIu64 " of %" PRIu32 "</td><td>", layer->kept_count, layer->physical_before);
                if (isfinite(mass)) {
                        meter_put(mass, to);
                        (void)fprintf(to, "%.1f %%", 100 * mass);
                } else {
                        (void)fputs("&ndash;", to);
                }
                (void)fprintf(to, "</td><td class=\"ranges\"><details><summary>%zu range%s</summary>",
                              layer->range_count, layer->range_count == 1 ? "" : "s");
                for (size_t k = 0; k < layer->range_count; k++) {
                        uint32_t first = layer->ranges[2 * k], last = layer->ranges[2 * k + 1] - 1;

                        (void)fprintf(to, last > first ? "%s%" PRIu32 "&ndash;%" PRIu32 : "%s%" PRIu32, k ? " " : "",
                                      first, last);
                }
                (void)fputs("</details></td></tr>\n", to);
        }
}

static void put_mass(const struct ckv_page *page, FILE *to) {
        bool sum = page->plan->policy.unit_reduce == CHUNKKV_UNIT_SUM;

        (void)fprintf(to, "Kept mass is the part of the scores that falls on kept rows: each chunk&#39;s score%s, added up "
                      "over kept rows and divided by the same over all rows that were scored.%s  It says how much of "
                      "what the scorer saw is still there, not how well the model will answer.",
                      sum ? ", spread over its rows" : " counts for each of its rows",
                      page->grid.guards_scored ? "" : "  Protected rows have no score and count in neither.");
}

static void put_footer(const struct ckv_page *page, FILE *to) {
        (void)fprintf(to, "Made by chunkkvctl " CKV_VERSION
                      ".  The daemon took %.1f ms to score and %.1f ms to select.",
                      (double)page->plan->score_us / 1000, (double)page->plan->select_us / 1000);
}

static void put_version(const struct ckv_page *page, FILE *to) {
        (void)page;
        (void)fputs(CKV_VERSION, to);
}

static const struct { const char *name; void (*put)(const struct ckv_page *page, FILE *to); } slots[] = {
        { "version", put_version }, { "title", put_title }, { "summary", put_summary }, { "notice", put_notice },
        { "command", put_command }, { "policy", put_policy }, { "chunks", put_chunks }, { "tabs", put_tabs },
        { "guards", put_guards }, { "text", put_text }, { "layers", put_layers }, { "mass", put_mass },
        { "footer", put_footer }, { "data", ckv_page_data },
};

static void template_fill(const struct ckv_page *page, FILE *to) {
        const char *at = ckv_explain_template, *begin, *end;

        while ((begin = strstr(at, "@@")) && (end = strstr(begin + 2, "@@"))) {
                size_t length = (size_t)(end - begin) - 2;

                (void)fwrite(at, 1, (size_t)(begin - at), to);
                for (size_t i = 0; i < CKV_ARRAY_SIZE(slots); i++) {
                        if (strlen(slots[i].name) == length && memcmp(slots[i].name, begin + 2, length) == 0)
                                slots[i].put(page, to);
                }
                at = end + 2;
        }
        (void)fputs(at, to);
}

int ckv_explain_check(const struct ckv_tokens *tokens, const struct ckv_layer *layers, size_t count,
                      char ret_why[static CKV_FILES_WHY]) {
        for (size_t i = 0; i < count; i++) {
                if (layers[i].rows == tokens->count && layers[i].rows > 0)
                        continue;
                if (layers[i].rows == 0) {
                        (void)snprintf(ret_why, CKV_FILES_WHY, "layer %" PRIu32 " has no rows to go with it",
                                       layers[i].number);
                        return -EINVAL;
                }
                (void)snprintf(ret_why, CKV_FILES_WHY, "it has %zu pieces of text, but layer %" PRIu32 " has %" PRIu32
                               " rows", tokens->count, layers[i].number, layers[i].rows);
                return -EINVAL;
        }
        return 0;
}

int ckv_explain_write(const struct ckv_settings *settings, const char *label, const struct ckv_plan *plan,
                      const struct ckv_tokens *tokens, struct ckv_output *output, char ret_why[static CKV_FILES_WHY]) {
        struct ckv_page page = { .settings = settings, .label = label, .plan = plan, .tokens = tokens };

        if (ckv_grid_init(settings, &plan->policy, (uint32_t)tokens->count, &page.grid)) {
                (void)snprintf(ret_why, CKV_FILES_WHY, "no memory for a page");
                return -ENOMEM;
        }
        for (size_t i = 0; i < plan->layer_count; i++) {
                if (!plan->layers[i].scores || plan->layers[i].score_count == page.grid.unit_count)
                        continue;
                (void)snprintf(ret_why, CKV_FILES_WHY,
                               "the daemon gave %zu scores for the %zu chunks of layer %" PRIu32,
                               plan->layers[i].score_count, page.grid.unit_count, plan->layers[i].number);
                ckv_grid_deinit(&page.grid);
                return -EPROTO;
        }
        template_fill(&page, output->stream);
        ckv_grid_deinit(&page.grid);
        return 0;
}
