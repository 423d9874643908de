/* The CUDA device without a GPU: text of every program and schedule, compilation where NVRTC is found, cache, refusals.
 * CODA_TEST_CUDA=all compiles every standard program with every schedule; else a few. */
#include "cuda/kernel.h"
#include "kit/standard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const schedules[] = {NULL, "portable", "direct", "warps", "copied"};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

/* A device that only compiles; without_compiler hides NVRTC, so that kernels are text alone. */
static coda_device *open_compiling(const char *name, bool without_compiler)
{
    coda_device *device = NULL;
    coda_error error = {0};
    setenv("CODA_CACHE", "off", 1);
    if (coda_device_open(name, &device, &error) != CODA_OK)
        fail_msg("%s", error.message);
    struct gpu *gpu = device->state;
    if (without_compiler)
        compiler_unload(&gpu->compiler);
    return device;
}

static coda_dims heads_of(const coda_program *program, int64_t head)
{
    coda_dims all = small_sizes(program, head), fixed = {0};
    for (int i = 0; i < all.count; i++)
        if (axis_is_fixed(program->graph, graph_find_axis(program->graph, all.item[i].axis)))
            fixed.item[fixed.count++] = all.item[i];
    return fixed;
}

static void every_program_and_schedule_has_text(void **state)
{
    static const char *const devices[] = {"cuda:sm_80", "cuda:sm_89", "cuda:sm_90a"};
    (void)state;
    for (size_t d = 0; d < sizeof devices / sizeof *devices; d++) {
        coda_device *device = open_compiling(devices[d], true);
        for (int p = 0; p < coda_module_size(standard_module()); p++)
            for (int s = 0; s < SCHEDULES; s++)
                for (int64_t head = 8; head <= 256; head *= 2) {
                    const coda_program *program = coda_module_program(standard_module(), p);
                    coda_dims dims = heads_of(program, head);
                    coda_options options = {.size = sizeof options, .schedule = schedules[s]};
                    coda_kernel *kernel = NULL;
                    coda_error error = {0};
                    coda_status status = coda_kernel_create(device, program, &dims, &options, &kernel, &error);
                    if (status == CODA_UNSUPPORTED && s > 1)
                        continue;
                    if (status != CODA_OK)
                        fail_msg("%s on %s: %s", coda_program_name(program), devices[d], error.message);
                    const char *source = coda_kernel_source(kernel);
                    char entry[128];
                    snprintf(entry, sizeof entry, "#define KERNEL coda_%s\n", coda_program_name(program));
                    if (!strstr(source, entry) || !strstr(source, " KERNEL("))
                        fail_msg("%s on %s: the text lacks its kernel", coda_program_name(program), devices[d]);
                    coda_kernel_free(kernel);
                }
        coda_device_close(device);
    }
}

/* Tiles of 256 x 256 for two blocks of a cluster; a wave has half as many as there are multiprocessors. */
static void a_last_wave_that_fills_at_most_half_the_gpu_is_narrow(void **state)
{
    static const struct {
        int multiprocessors;
        int64_t rows, columns, narrow;
    } rows[] = {
        {132, 11264, 2048, 22},                            /* 5.33 waves */
        {132, 2048, 5632, 0},                              /* 2.67 */
        {132, 66 * 256, 256, 0},                           /* 1 */
        {132, 33 * 256, 256, 33}, {132, 34 * 256, 256, 0}, /* 0.50, 0.52 */
        {132, 1, 1, 1},           {2, 2048, 2048, 0},      /* one block has all of them */
        {6, 290, 290, 1},
    };
    struct variant variant = {.mainloop = MAINLOOP_DIRECT, .bands = 2, .columns = 256, .cluster = 2};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct gpu gpu = {.multiprocessors = rows[i].multiprocessors};
        assert_int_equal(hopper_narrow_tiles(&gpu, &variant, rows[i].rows, rows[i].columns), rows[i].narrow);
    }
}

static void narrow_tiles_are_in_the_text_where_they_may_be_launched(void **state)
{
    static const struct {
        const char *program;
        coda_dims dims;
        bool narrow;
    } rows[] = {
        {"gemm_wgrad", {3, {{"M", 11264}, {"N", 2048}, {"K", 64}}}, true},
        {"gemm_wgrad", {3, {{"M", 2048}, {"N", 5632}, {"K", 64}}}, false},
        {"gemm_wgrad", {0}, true},       /* sizes come with the launch */
        {"gemm_rms_swiglu", {0}, false}, /* two accumulators share the columns */
        {"gemm_dgrad", {3, {{"M", 16384}, {"N", 5632}, {"K", 64}}}, true},
    };
    coda_device *device = open_compiling("cuda:sm_90a", true);
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        coda_kernel *kernel;
        assert_int_equal(
            coda_kernel_create(device, standard_program(rows[i].program), &rows[i].dims, NULL, &kernel, NULL), CODA_OK);
        if ((strstr(coda_kernel_source(kernel), "#define NARROW 1\n") != NULL) != rows[i].narrow)
            fail_msg("row %zu: %s %s narrow tiles", i, rows[i].program, rows[i].narrow ? "lacks" : "has");
        coda_kernel_free(kernel);
    }
    coda_device_close(device);
}

/* Where nothing passes between groups of columns: a run of 128 of them does. */
static void heads_side_by_side_share_the_angles_of_a_rotation(void **state)
{
    static const char texts[] =
        "program halves { in A : bf16[M, K]; in W : bf16[N, K]; in table : f32[P, D]; in pos : i32[M]\n"
        "  out Y : bf16[M, N] = rope(A @ W.T, table, pos) }\n"
        "program runs { in A : bf16[M, K]; in W : bf16[N, K]; in table : f32[P, D]; in pos : i32[M]\n"
        "  y = rope(A @ W.T, table, pos); out Y : bf16[M, N] = y; out S : f32[M, N/128] = sum(y, N:128) }\n"
        "program residual { in A : bf16[M, K]; in W : bf16[N, K]; in C : bf16[M, N]; in table : f32[P, D]; in pos : "
        "i32[M]\n"
        "  out Y : bf16[M, N] = rope(A @ W.T + C, table, pos) }\n";
    static const struct {
        const char *program;
        int64_t head;
        const char *spread, *one_angle;
    } rows[] = {
        {"halves", 128, "#define SPREAD 1\n", "#define ONE_ANGLE 1\n"},
        {"halves", 64, "#define SPREAD 0\n", "#define ONE_ANGLE 1\n"},
        {"halves", 256, "#define SPREAD 0\n", "#define ONE_ANGLE 0\n"},
        {"runs", 128, "#define SPREAD 0\n", "#define ONE_ANGLE 0\n"},
        {"residual", 128, "#define SPREAD 0\n", "#define ONE_ANGLE 0\n"},
    };
    coda_device *device = open_compiling("cuda:sm_90a", true);
    coda_module *module;
    coda_error error = {0};
    (void)state;
    if (coda_module_parse(texts, strlen(texts), "test", &module, &error) != CODA_OK)
        fail_msg("%s", error.message);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const coda_dims dims = {1, {{"D", rows[i].head}}};
        coda_kernel *kernel;
        if (coda_kernel_create(device, coda_module_find(module, rows[i].program), &dims, NULL, &kernel, &error) !=
            CODA_OK)
            fail_msg("%s", error.message);
        if (!strstr(coda_kernel_source(kernel), rows[i].spread) ||
            !strstr(coda_kernel_source(kernel), rows[i].one_angle))
            fail_msg("row %zu: expected %s%s", i, rows[i].spread, rows[i].one_angle);
        coda_kernel_free(kernel);
    }
    coda_module_free(module);
    coda_device_close(device);
}

/* A factor a row of all that is made of a product is multiplied before the product is rounded. */
static void factors_of_rows_come_before_the_rounding(void **state)
{
    static const struct {
        const char *program;
        int factors;
    } rows[] = {
        {"r = rsqrt(s)\n out Y : bf16[M, N] = (A @ W.T) * r }", 1},
        {"out Y : bf16[M, N] = silu(s * (A @ W.T)) + 1 }", 1},
        {"y = (A @ W.T) * s\n out Y : bf16[M, N] = y; out Z : bf16[M, N] = y * g }", 1},
        {"z = A @ W.T\n out Y : bf16[M, N] = z * s; out Z : bf16[M, N] = z + g }", 0},
        {"z = A @ W.T\n out Y : bf16[M, N] = z * s; out Z : bf16[M, N] = z }", 0},
        {"z = A @ W.T\n out Y : bf16[M, N] = z * s + z * sqrt(s) }", 0},
        {"out Y : bf16[M, N] = (A @ W.T) * g + s }", 0},
        {"out Y : bf16[M, N] = (A @ W.T) * s * (A @ V.T) }", 1},
        /* A tile that is kept whole leaves no registers for them. */
        {"y = (A @ W.T) * s\n out Y : bf16[M, N] = y * rsqrt(sum(y * y, N:128)) }", 0},
    };
    coda_device *device = open_compiling("cuda:sm_90a", true);
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512], expected[64];
        coda_module *module;
        coda_kernel *kernel;
        coda_error error = {0};
        snprintf(text, sizeof text, "program p { in A : bf16[M, K]; in W : bf16[N, K]%s%s%s\n %s",
                 strstr(rows[i].program, "V.T") ? "; in V : bf16[N, K]" : "",
                 strchr(rows[i].program, 's') ? "; in s : f32[M]" : "",
                 strstr(rows[i].program, "g ") || strstr(rows[i].program, "g;") ? "; in g : bf16[N]" : "",
                 rows[i].program);
        if (coda_module_parse(text, strlen(text), "test", &module, &error) != CODA_OK ||
            coda_kernel_create(device, coda_module_program(module, 0), NULL, NULL, &kernel, &error) != CODA_OK)
            fail_msg("%s", error.message);
        snprintf(expected, sizeof expected, "#define HAS_FACTORS %d\n", rows[i].factors);
        if (!strstr(coda_kernel_source(kernel), expected))
            fail_msg("row %zu: expected %s", i, expected);
        coda_kernel_free(kernel);
        coda_module_free(module);
    }
    coda_device_close(device);
}

/* A product that is an out as it stands goes by the copy engine. */
static void outs_that_are_products_are_copied(void **state)
{
    static const struct {
        const char *program;
        bool copied;
    } rows[] = {
        {"out Y : bf16[M, N] = A @ W.T }", true},
        {"out Y : f32[M, N] += A @ W.T }", true},
        {"out Y : bf16[M, N] += cast(A @ W.T, bf16) }", true},
        {"in s : f32[M]\n out Y : bf16[M, N] = (A @ W.T) * sqrt(s); out r : f32[M] = sqrt(s) }", true},
        {"out Y : f16[M, N] = A @ W.T }", false},
        {"out Y : f32[M, N] = cast(A @ W.T, bf16) }", false},
        {"y = A @ W.T\n out Y : bf16[M, N] = y; out Z : bf16[M, N] = y }", false},
        {"y = A @ W.T\n out Y : bf16[M, N] = y; out S : f32[M, N/32] = sum(y, N:32) }", false},
        {"in t : i32[M]\n y = A @ W.T\n out Y : bf16[M, N] = y; out p : f32[M] = pick(y, t) }", false},
        {"in g : bf16[N]\n out Y : bf16[M, N] = (A @ W.T) * g }", false},
        {"in C : bf16[M, N]\n out Y : bf16[M, N] = A @ W.T + C }", false},
    };
    coda_device *device = open_compiling("cuda:sm_90a", true);
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512];
        coda_module *module;
        coda_kernel *kernel;
        coda_error error = {0};
        snprintf(text, sizeof text, "program p { in A : bf16[M, K]; in W : bf16[N, K]\n %s", rows[i].program);
        if (coda_module_parse(text, strlen(text), "test", &module, &error) != CODA_OK ||
            coda_kernel_create(device, coda_module_program(module, 0), NULL, NULL, &kernel, &error) != CODA_OK)
            fail_msg("%s", error.message);
        if ((strstr(coda_kernel_source(kernel), "#define OUT_COPIED 1\n") != NULL) != rows[i].copied)
            fail_msg("row %zu is%s copied", i, rows[i].copied ? " not" : "");
        coda_kernel_free(kernel);
        coda_module_free(module);
    }
    coda_device_close(device);
}

/* 1 / cap belongs to the side of the branch where cap is not 0. */
static void a_scalar_divides_once_a_row_where_it_is_used(void **state)
{
    coda_device *device = open_compiling("cuda:sm_90a", true);
    coda_kernel *kernel;
    (void)state;
    assert_int_equal(coda_kernel_create(device, standard_program("gemm_rms_lse"), NULL, NULL, &kernel, NULL), CODA_OK);
    const char *group = strstr(coda_kernel_source(kernel), "INLINE void coda_group("), *inverse = NULL, *branch = NULL;
    assert_non_null(group);
    inverse = strstr(group, "coda_div(1.0f, ");
    branch = strstr(group, " != 0.0f) {");
    assert_non_null(inverse);
    assert_true(branch && branch < inverse);
    assert_null(strstr(inverse + 1, "coda_div("));
    coda_kernel_free(kernel);
    coda_device_close(device);
}

static void text_is_the_same_each_time(void **state)
{
    (void)state;
    coda_device *device = open_compiling("cuda:sm_90a", true);
    coda_kernel *first, *second;
    assert_int_equal(coda_kernel_create(device, standard_program("gemm_rms_bwd"), NULL, NULL, &first, NULL), CODA_OK);
    assert_int_equal(coda_kernel_create(device, standard_program("gemm_rms_bwd"), NULL, NULL, &second, NULL), CODA_OK);
    assert_string_equal(coda_kernel_source(first), coda_kernel_source(second));
    assert_non_null(strstr(coda_kernel_source(first), "xn = X * R"));
    coda_kernel_free(first);
    coda_kernel_free(second);
    coda_device_close(device);
}

/* ---------------------------------------------------------------- with NVRTC */

/* Bytes that the assembler spilled; -1 where the log does not say. */
static int spilled_bytes(const char *log)
{
    int most = -1;
    for (const char *at = log; (at = strstr(at, "bytes stack frame,")); at++) {
        int stores = 0;
        if (sscanf(at, "bytes stack frame, %d bytes spill stores", &stores) == 1 && stores > most)
            most = stores;
    }
    return most;
}

/* Outside of the loop over K a few registers may rest in memory; four heads of a norm and rotation do not fit (docs). */
static int accepted_spill(const coda_program *program)
{
    return strcmp(coda_program_name(program), "gemm_qknorm_rope") == 0 ? 1024 : 64;
}

static void check_compiled(const coda_program *program, const coda_kernel *kernel)
{
    const struct cuda_kernel *k = kernel->state;
    for (int i = 0; i < k->variant_count; i++) {
        const struct compiled *c = &k->compiled[i];
        const char *log = text_of(&c->log), *name = mainloop_name(c->variant.mainloop);
        if (c->cubin_size < 1000)
            fail_msg("%s %s: a cubin of %zu bytes", coda_program_name(program), name, c->cubin_size);
        char entry[ENTRY_NAME];
        source_entry(coda_program_name(program), entry);
        if (!memmem(c->cubin, c->cubin_size, entry, strlen(entry) + 1))
            fail_msg("%s %s: the cubin lacks %s", coda_program_name(program), name, entry);
        if (strstr(log, "C75"))
            fail_msg("%s %s: the assembler serialises wgmma:\n%s", coda_program_name(program), name, log);
        if (spilled_bytes(log) < 0 || spilled_bytes(log) > accepted_spill(program))
            fail_msg("%s %s: %d bytes spilled", coda_program_name(program), name, spilled_bytes(log));
        if (c->shared_bytes > 232448)
            fail_msg("%s %s: %d bytes of shared memory", coda_program_name(program), name, c->shared_bytes);
    }
}

static bool is_wanted(const char *program)
{
    static const char *const few[] = {"gemm_rms", "column_sum", "square_sum", "cross_entropy_loss"};
    const char *choice = getenv("CODA_TEST_CUDA");
    for (size_t i = 0; i < sizeof few / sizeof *few; i++)
        if (!strcmp(program, few[i]))
            return true;
    return choice && !strcmp(choice, "all");
}

static void programs_compile_without_spills_or_serialised_products(void **state)
{
    (void)state;
    coda_device *device = open_compiling("cuda:sm_90a", false);
    const struct gpu *gpu = device->state;
    if (!gpu->compiler.library) {
        print_message("no NVRTC: %s\n", gpu->compiler_error.message);
        coda_device_close(device);
        skip();
    }
    for (int p = 0; p < coda_module_size(standard_module()); p++)
        for (int s = 1; s < SCHEDULES; s++) {
            const coda_program *program = coda_module_program(standard_module(), p);
            coda_dims dims = heads_of(program, 128);
            coda_options options = {.size = sizeof options, .schedule = schedules[s]};
            coda_kernel *kernel = NULL;
            coda_error error = {0};
            if (!is_wanted(coda_program_name(program)))
                continue;
            coda_status status = coda_kernel_create(device, program, &dims, &options, &kernel, &error);
            if (status == CODA_UNSUPPORTED)
                continue;
            if (status != CODA_OK)
                fail_msg("%s", error.message);
            check_compiled(program, kernel);
            coda_kernel_free(kernel);
        }
    coda_device_close(device);
}

/* Kernels of several problems: their products are not serialised either, and nothing is spilled. */
static void joined_kernels_compile_without_spills_or_serialised_products(void **state)
{
    static const char *const programs[] = {"gemm", "gemm_wgrad"};
    (void)state;
    coda_device *device = open_compiling("cuda:sm_90a", false);
    const struct gpu *gpu = device->state;
    for (size_t p = 0; p < sizeof programs / sizeof *programs && gpu->compiler.library; p++) {
        coda_options options = {.size = sizeof options, .sets = 8};
        coda_kernel *kernel = NULL;
        coda_error error = {0};
        if (coda_kernel_create(device, standard_program(programs[p]), NULL, &options, &kernel, &error) != CODA_OK)
            fail_msg("%s", error.message);
        const struct cuda_kernel *k = kernel->state;
        assert_non_null(k->joined);
        assert_non_null(strstr(text_of(&k->joined->source), "#define PROBLEMS 8\n"));
        check_compiled(standard_program(programs[p]), kernel);
        assert_int_equal(spilled_bytes(text_of(&k->joined->log)), 0);
        coda_kernel_free(kernel);
    }
    bool compiles = gpu->compiler.library != NULL;
    coda_device_close(device);
    if (!compiles)
        skip();
}

/* ---------------------------------------------------------------- cache */

/* The text of a program as the compiler and the cache's key see it. */
static void compiled_text(coda_device *device, const char *text, struct text *out)
{
    coda_module *module;
    coda_kernel *kernel;
    coda_error error = {0};
    if (coda_module_parse(text, strlen(text), "names", &module, &error) != CODA_OK ||
        coda_kernel_create(device, coda_module_program(module, 0), NULL, NULL, &kernel, &error) != CODA_OK)
        fail_msg("%s", error.message);
    const struct cuda_kernel *k = kernel->state;
    assert_int_equal(source_without_names(&k->compiled[0].source, out, &error), CODA_OK);
    coda_kernel_free(kernel);
    coda_module_free(module);
}

static void names_are_not_compiled(void **state)
{
    static const struct {
        const char *text;
        bool same;
    } rows[] = {
        {"program p { in a : bf16[M, K]; in b : bf16[N, K]; out c : bf16[M, N] = silu(a @ b.T) }", true},
        {"program longer { in left : bf16[R, D]; in right : bf16[V, D]; out y : bf16[R, V] = silu(left @ right.T) }",
         true},
        {"program p { in a : bf16[M, K]; in b : bf16[N, K]; out c : bf16[M, N] = sigmoid(a @ b.T) }", false},
        {"program p { in a : f16[M, K]; in b : f16[N, K]; out c : f16[M, N] = silu(a @ b.T) }", false},
    };
    (void)state;
    coda_device *device = open_compiling("cuda:sm_90a", true);
    struct text first = {0};
    compiled_text(device, rows[0].text, &first);
    assert_null(strstr(text_of(&first), "/*"));
    assert_null(strstr(text_of(&first), "coda_p\n"));
    for (size_t i = 1; i < sizeof rows / sizeof *rows; i++) {
        struct text other = {0};
        compiled_text(device, rows[i].text, &other);
        if ((strcmp(text_of(&first), text_of(&other)) == 0) != rows[i].same)
            fail_msg("%s: expected %s text", rows[i].text, rows[i].same ? "the same" : "another");
        text_free(&other);
    }
    text_free(&first);
    coda_device_close(device);
}

static void a_kernel_gets_its_own_name_in_the_binary(void **state)
{
    static const char define[] = "#define KERNEL ";
    (void)state;
    coda_device *device = open_compiling("cuda:sm_90a", true);
    struct text text = {0};
    compiled_text(device, "program p { in a : bf16[M, N]; out c : bf16[M, N] = silu(a) }", &text);
    char *common = strstr(text.data, define) + strlen(define), binary[600] = ".text.";
    *strchr(common, '\n') = '\0';
    size_t length = strlen(common);
    assert_true(length < 200);
    memcpy(binary + 6, common, length);
    memcpy(binary + 7 + length, common, length);
    source_name("gemm_swiglu", binary, 7 + 2 * length);
    assert_string_equal(binary, ".text.coda_gemm_swiglu");
    assert_string_equal(binary + 7 + length, "coda_gemm_swiglu");
    source_name("another", binary, 7 + 2 * length);
    assert_string_equal(binary, ".text.coda_gemm_swiglu");
    text_free(&text);
    coda_device_close(device);
}

static void digests_are_sha_256(void **state)
{
    static const struct {
        const char *text, *hex;
    } rows[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char hex[65];
        struct digest digest = digest_of(rows[i].text, strlen(rows[i].text));
        digest_hex(&digest, hex);
        assert_string_equal(hex, rows[i].hex);
    }
}

static void the_cache_gives_back_what_it_was_given_and_nothing_damaged(void **state)
{
    char folder[] = "/tmp/coda-test-XXXXXX", path[1200], hex[65];
    struct cache cache;
    void *data = NULL;
    size_t size = 0;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/deeper/still", folder);
    setenv("CODA_CACHE", path, 1);
    cache_open(&cache);
    assert_string_equal(cache.folder, path);
    struct digest key = digest_of("key", 3);
    assert_false(cache_get(&cache, "cubin", &key, &data, &size));
    cache_put(&cache, "cubin", &key, "some content", 12);
    assert_true(cache_get(&cache, "cubin", &key, &data, &size));
    assert_int_equal(size, 12);
    assert_memory_equal(data, "some content", 12);
    free(data);
    digest_hex(&key, hex);
    snprintf(path, sizeof path, "%s/%s.cubin", cache.folder, hex);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, -3, SEEK_END);
    fputc('X', file);
    fclose(file);
    assert_false(cache_get(&cache, "cubin", &key, &data, &size));
    assert_int_equal(truncate(path, 20), 0);
    assert_false(cache_get(&cache, "cubin", &key, &data, &size));
    unlink(path);
    snprintf(path, sizeof path, "rm -rf %s", folder);
    assert_int_equal(system(path), 0);
    setenv("CODA_CACHE", "/proc/nowhere", 1);
    cache_open(&cache);
    assert_string_equal(cache.folder, "");
    assert_non_null(strstr(cache.remark, "CODA_CACHE"));
    cache_put(&cache, "cubin", &key, "x", 1);
}

/* ---------------------------------------------------------------- refusals */

static void devices_that_do_not_exist_are_refused(void **state)
{
    static const char *const names[] = {"cuda:x", "cuda:-1", "cuda:sm_70", "cuda:sm_90b", "cuda:sm_", "cuda:99999"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        coda_device *device = NULL;
        coda_error error = {0};
        assert_int_equal(coda_device_open(names[i], &device, &error), CODA_INVALID);
        assert_null(device);
        assert_non_null(strstr(error.message, "cuda"));
    }
}

static void a_device_without_a_gpu_refuses_to_run(void **state)
{
    (void)state;
    coda_device *device = open_compiling("cuda:sm_80", true);
    void *pointer = NULL;
    coda_error error = {0};
    assert_int_equal(coda_allocate(device, 16, &pointer, &error), CODA_DEVICE);
    assert_non_null(strstr(error.message, "only compiles"));
    assert_int_equal(coda_synchronize(device, NULL, &error), CODA_DEVICE);
    coda_device_close(device);
}

static void limits_are_named(void **state)
{
    static const struct {
        const char *body, *part;
    } rows[] = {
        {"in X : bf16[M, N]; out S : f32[M, N/48] = sum(X, N:48)", "48 columns"},
        {"in X : bf16[M, N]; out S : f32[M/128, N] = sum(X, M:128)", "128 rows"},
        {"in X : bf16[M, N]; out S : f32[M/64, N] = logsumexp(X, M:64)", "logsumexp"},
        {"in X : bf16[M, N]; a, b = halves(X, 48); out Y : bf16[M, N] = join_halves(a + b, b, 48)", "48 apart"},
        {"in A : bf16[M, K]; in W, V : bf16[N, K]; out S : f32[M, N/256] = sum((A @ W.T) * (A @ V.T), N:256)",
         "256 columns"},
    };
    (void)state;
    coda_device *device = open_compiling("cuda:sm_90a", true);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512];
        coda_module *module;
        coda_kernel *kernel;
        coda_error error = {0};
        snprintf(text, sizeof text, "program p { %s }", rows[i].body);
        if (coda_module_parse(text, strlen(text), "limits", &module, &error) != CODA_OK)
            fail_msg("%s", error.message);
        assert_int_equal(coda_kernel_create(device, coda_module_program(module, 0), NULL, NULL, &kernel, &error),
                         CODA_UNSUPPORTED);
        if (!strstr(error.message, rows[i].part))
            fail_msg("\"%s\" does not name %s", error.message, rows[i].part);
        coda_module_free(module);
    }
    coda_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_program_and_schedule_has_text),
        cmocka_unit_test(a_last_wave_that_fills_at_most_half_the_gpu_is_narrow),
        cmocka_unit_test(narrow_tiles_are_in_the_text_where_they_may_be_launched),
        cmocka_unit_test(heads_side_by_side_share_the_angles_of_a_rotation),
        cmocka_unit_test(factors_of_rows_come_before_the_rounding),
        cmocka_unit_test(outs_that_are_products_are_copied),
        cmocka_unit_test(a_scalar_divides_once_a_row_where_it_is_used),
        cmocka_unit_test(text_is_the_same_each_time),
        cmocka_unit_test(programs_compile_without_spills_or_serialised_products),
        cmocka_unit_test(joined_kernels_compile_without_spills_or_serialised_products),
        cmocka_unit_test(names_are_not_compiled),
        cmocka_unit_test(a_kernel_gets_its_own_name_in_the_binary),
        cmocka_unit_test(digests_are_sha_256),
        cmocka_unit_test(the_cache_gives_back_what_it_was_given_and_nothing_damaged),
        cmocka_unit_test(devices_that_do_not_exist_are_refused),
        cmocka_unit_test(a_device_without_a_gpu_refuses_to_run),
        cmocka_unit_test(limits_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
