#include "training.h"

#include <string.h>
#include <unistd.h>

enum { BAR = 30, LINES = 20 }; /* width of the bar; lines of a run that is not watched on a terminal */

void progress_begin(struct progress *progress, struct json *json, int64_t first, int64_t steps)
{
    *progress = (struct progress){
        .json = json, .terminal = !json && isatty(STDOUT_FILENO), .first = first, .steps = steps, .start_ms = now_ms()};
}

double progress_rate(const struct progress *progress)
{
    double seconds = (now_ms() - progress->start_ms) / 1000;
    return seconds > 0 ? progress->tokens / seconds : 0;
}

static void print_time(char *text, size_t room, double seconds)
{
    long s = (long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(text, room, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(text, room, "%ld:%02ld", s / 60, s % 60);
}

static void print_bar(const struct progress *p, const coda_step_report *r, const char *left)
{
    int filled = (int)(BAR * r->step / p->steps);
    char bar[BAR + 1];
    memset(bar, '.', BAR);
    memset(bar, '#', (size_t)filled);
    bar[BAR] = 0;
    printf("\r[%s] %lld/%lld  loss %.4f  %.0f tokens/s  %s left \033[K", bar, (long long)r->step, (long long)p->steps,
           r->loss, progress_rate(p), left);
}

static void print_object(const struct progress *p, const coda_step_report *r)
{
    json_begin(p->json);
    json_text(p->json, "event", "step");
    json_number(p->json, "step", (double)r->step);
    json_number(p->json, "loss", r->loss);
    json_number(p->json, "gradient_norm", r->gradient_norm);
    json_number(p->json, "learning_rate", r->learning_rate);
    json_number(p->json, "tokens_per_second", progress_rate(p));
    json_line(p->json);
}

void progress_step(struct progress *progress, const coda_step_report *report)
{
    struct progress *p = progress;
    char left[32];
    p->tokens += (double)report->tokens;
    double now = now_ms(), done = (double)(report->step - p->first);
    print_time(left, sizeof left, (now - p->start_ms) / 1000 / done * (double)(p->steps - report->step));
    int64_t every = (p->steps - p->first + LINES - 1) / LINES;
    bool last = report->step == p->steps;
    if (p->json)
        print_object(p, report);
    else if (p->terminal && (last || now - p->line_ms > 100)) {
        p->line_ms = now;
        print_bar(p, report, left);
    } else if (!p->terminal && (last || report->step % every == 0 || done == 1))
        printf("step %lld/%lld  loss %.4f  gradient norm %.3f  rate %.2e  %.0f tokens/s  %s left\n",
               (long long)report->step, (long long)p->steps, report->loss, report->gradient_norm, report->learning_rate,
               progress_rate(p), left);
    fflush(stdout);
}

void progress_clear(struct progress *progress)
{
    if (progress->terminal)
        fputs("\n", stdout);
}
