/*
 * llama-speed: prefill and decode speed of llama.cpp through its C library, in the shape of
 * `engine bench --json`.
 *
 *   llama-speed --backends DIR -m MODEL [--pp N] [--tg N] [--repeat N] [-t THREADS] [--seed N] [--mmap-only]
 *
 * Only evaluation is timed: one llama_decode of the whole prompt, or one per token, up to
 * llama_synchronize, each test from an empty context; one round warms up. Decode feeds random tokens.
 * --mmap-only turns off the repacking into an interleaved copy, so that weights stay in the file's
 * mapping. Built by llama-driver.sh against the headers of the library's own release.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml-backend.h"
#include "llama.h"

static void quiet(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level >= GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fail(const char *what, const char *which) {
    fprintf(stderr, "llama-speed: %s: %s\n", what, which);
    exit(1);
}

static uint64_t rng = 1;

static llama_token draw(int n_vocab) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (llama_token)((rng >> 33) % (uint64_t)n_vocab);
}

static double once(struct llama_context *ctx, llama_token *ids, int n, bool prefill) {
    llama_memory_clear(llama_get_memory(ctx), true);
    llama_synchronize(ctx);
    double start = now();
    if (prefill) {
        if (llama_decode(ctx, llama_batch_get_one(ids, n))) fail("decode", "prompt");
        llama_synchronize(ctx);
        return now() - start;
    }
    for (int i = 0; i < n; i++) {
        if (llama_decode(ctx, llama_batch_get_one(ids + i, 1))) fail("decode", "token");
        llama_synchronize(ctx);
    }
    return now() - start;
}

int main(int argc, char **argv) {
    const char *path = NULL, *backends = NULL;
    int pp = 512, tg = 64, repeat = 3, threads = 2;
    bool repack = true;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--mmap-only")) {
            repack = false;
            continue;
        }
        if (i + 1 == argc) fail("no value for", argv[i]);
        const char *v = argv[i + 1];
        if (!strcmp(argv[i], "-m")) path = v;
        else if (!strcmp(argv[i], "--backends")) backends = v;
        else if (!strcmp(argv[i], "--pp")) pp = atoi(v);
        else if (!strcmp(argv[i], "--tg")) tg = atoi(v);
        else if (!strcmp(argv[i], "--repeat")) repeat = atoi(v);
        else if (!strcmp(argv[i], "-t")) threads = atoi(v);
        else if (!strcmp(argv[i], "--seed")) rng = strtoull(v, NULL, 10);
        else fail("unknown option", argv[i]);
        i++;
    }
    if (!path || repeat < 1 || threads < 1 || pp < 0 || tg < 0) fail("usage", "see the head of llama-speed.c");
    llama_log_set(quiet, NULL);
    if (backends) ggml_backend_load_all_from_path(backends);
    llama_backend_init();

    struct llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    mp.use_extra_bufts = repack;
    struct llama_model *model = llama_model_load_from_file(path, mp);
    if (!model) fail("cannot load", path);
    struct llama_context_params cp = llama_context_default_params();
    int most = pp > tg ? pp : tg;
    cp.n_ctx = (uint32_t)most + 8;
    cp.n_batch = cp.n_ubatch = pp > 0 ? (uint32_t)pp : 512;
    cp.n_threads = cp.n_threads_batch = threads;
    struct llama_context *ctx = llama_init_from_model(model, cp);
    if (!ctx) fail("cannot make a context for", path);

    int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_token *ids = malloc(sizeof *ids * (size_t)(most + 1));
    double *sec[2] = {calloc((size_t)repeat, sizeof(double)), calloc((size_t)repeat, sizeof(double))};
    int size[2] = {pp, tg};
    for (int round = 0; round <= repeat; round++) {
        for (int k = 0; k < 2; k++) {
            if (!size[k]) continue;
            for (int i = 0; i < size[k]; i++) ids[i] = draw(n_vocab);
            double s = once(ctx, ids, size[k], k == 0);
            if (round > 0) sec[k][round - 1] = s;
        }
    }
    printf("{\"engine\": \"llama.cpp\", \"threads\": %d, \"repack\": %s, \"results\": [", threads, repack ? "true" : "false");
    const char *sep = "";
    for (int k = 0; k < 2; k++) {
        if (!size[k]) continue;
        printf("%s{\"test\": \"%s%d\", \"tokens\": %d, \"seconds\": [", sep, k ? "tg" : "pp", size[k], size[k]);
        for (int r = 0; r < repeat; r++) printf("%s%.6f", r ? ", " : "", sec[k][r]);
        printf("]}");
        sep = ", ";
    }
    printf("]}\n");
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}
