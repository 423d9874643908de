/* A fused kernel from text: Y = relu(A W^T + b), one product and its epilogue.
 *
 *   gcc examples/hello.c -Iinclude build/libcoda.a -pthread -ldl -lm -o hello && ./hello
 */
#include "coda.h"

#include <stdio.h>
#include <string.h>

static const char text[] = "program linear_relu {\n"
                           "    in  A : f32[M, K]\n"
                           "    in  W : f32[N, K]\n"
                           "    in  b : f32[N]\n"
                           "    out Y : f32[M, N] = relu(A @ W.T + b)\n"
                           "}\n";

int main(void)
{
    float a[2][3] = {{1, 2, 3}, {4, 5, 6}}, w[2][3] = {{1, 0, 1}, {0, -1, 0}}, b[2] = {0.5f, 3}, y[2][2];
    coda_tensor operands[] = {
        {.data = a, .dtype = CODA_F32, .rank = 2, .shape = {2, 3}},
        {.data = w, .dtype = CODA_F32, .rank = 2, .shape = {2, 3}},
        {.data = b, .dtype = CODA_F32, .rank = 1, .shape = {2}},
        {.data = y, .dtype = CODA_F32, .rank = 2, .shape = {2, 2}},
    };
    coda_module *module = NULL;
    coda_device *device = NULL;
    coda_kernel *kernel = NULL;
    coda_error error;
    coda_status status = coda_module_parse(text, strlen(text), "hello.c", &module, &error);
    if (status == CODA_OK)
        status = coda_device_open("cpu", &device, &error);
    if (status == CODA_OK)
        status = coda_kernel_create(device, coda_module_program(module, 0), NULL, NULL, &kernel, &error);
    if (status == CODA_OK)
        status = coda_kernel_launch(kernel, operands, 4, NULL, NULL, &error);
    if (status == CODA_OK)
        printf("%g %g\n%g %g\n", y[0][0], y[0][1], y[1][0], y[1][1]);
    else
        fprintf(stderr, "%s\n", error.message);
    coda_kernel_free(kernel);
    coda_device_close(device);
    coda_module_free(module);
    return status == CODA_OK ? 0 : 1;
}
