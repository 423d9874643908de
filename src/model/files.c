#include "model/files.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

coda_status output_open(struct output *output, const char *path, coda_error *error)
{
    output->descriptor = -1;
    if (strlen(path) >= sizeof output->path)
        return model_fail(error, CODA_INVALID, "the path '%.100s...' is longer than %zu bytes", path,
                          sizeof output->path - 1);
    snprintf(output->path, sizeof output->path, "%s", path);
    snprintf(output->temporary, sizeof output->temporary, "%s.%ld.tmp", path, (long)getpid());
    output->descriptor = open(output->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (output->descriptor < 0)
        return model_system_error(error, "create", output->temporary);
    return CODA_OK;
}

coda_status output_write(struct output *output, const void *bytes, size_t count, coda_error *error)
{
    const char *at = bytes;
    while (count > 0) {
        ssize_t written = write(output->descriptor, at, count < 1 << 30 ? count : 1 << 30);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return model_system_error(error, "write", output->path);
        at += written;
        count -= (size_t)written;
    }
    return CODA_OK;
}

void output_abandon(struct output *output)
{
    if (output->descriptor >= 0) {
        close(output->descriptor);
        unlink(output->temporary);
    }
    output->descriptor = -1;
}

coda_status output_commit(struct output *output, coda_error *error)
{
    coda_status status = CODA_OK;
    if (fsync(output->descriptor) != 0) {
        status = model_system_error(error, "flush", output->path);
        goto failed;
    }
    int closed = close(output->descriptor);
    output->descriptor = -1;
    if (closed != 0 || rename(output->temporary, output->path) != 0) {
        status = model_system_error(error, "rename to", output->path);
        unlink(output->temporary);
        return status;
    }
    return CODA_OK;
failed:
    output_abandon(output);
    return status;
}

coda_status write_text_file(const char *path, const char *text, size_t length, coda_error *error)
{
    struct output output;
    coda_status status = output_open(&output, path, error);
    if (status == CODA_OK)
        status = output_write(&output, text, length, error);
    if (status == CODA_OK)
        return output_commit(&output, error);
    output_abandon(&output);
    return status;
}

coda_status join_path(char *path, size_t room, const char *directory, const char *name, coda_error *error)
{
    size_t length = strlen(directory);
    const char *slash = length && directory[length - 1] == '/' ? "" : "/";
    if (length + strlen(name) + 1 >= room)
        return model_fail(error, CODA_INVALID, "the path '%.100s.../%.100s' is longer than %zu bytes", directory, name,
                          room - 1);
    snprintf(path, room, "%s%s%s", directory, slash, name);
    return CODA_OK;
}

coda_status make_directories(const char *path, coda_error *error)
{
    char part[CODA_PATH_SIZE + 64];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof part)
        return model_fail(error, CODA_INVALID, "'%.100s' is no path of a directory (1 to %zu bytes)", path,
                          sizeof part - 1);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != 0)
            continue;
        memcpy(part, path, i);
        part[i] = 0;
        struct stat info;
        if (mkdir(part, 0777) != 0 && !(errno == EEXIST && stat(part, &info) == 0 && S_ISDIR(info.st_mode)))
            return model_system_error(error, "create the directory", part);
    }
    return CODA_OK;
}

coda_status flush_directory(const char *path, coda_error *error)
{
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0)
        return model_system_error(error, "open", path);
    /* Some file systems cannot flush a directory (EINVAL): then there is nothing more to do. */
    coda_status status = fsync(descriptor) != 0 && errno != EINVAL ? model_system_error(error, "flush", path) : CODA_OK;
    close(descriptor);
    return status;
}

coda_status remove_directory(const char *path, coda_error *error)
{
    DIR *directory = opendir(path);
    if (!directory)
        return errno == ENOENT ? CODA_OK : model_system_error(error, "open", path);
    struct dirent *entry;
    while ((entry = readdir(directory)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(directory), entry->d_name, 0);
    closedir(directory);
    return rmdir(path) == 0 ? CODA_OK : model_system_error(error, "remove", path);
}

coda_status exchange_directory(const char *from, const char *to, bool *exchanged, coda_error *error)
{
    *exchanged = false;
    struct stat info;
    if (stat(to, &info) != 0 && errno == ENOENT)
        return rename(from, to) == 0 ? CODA_OK : model_system_error(error, "rename to", to);
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) {
        *exchanged = true;
        return CODA_OK;
    }
    if (errno != EINVAL && errno != ENOSYS)
        return model_system_error(error, "rename to", to);
    /* A file system without exchange: the old directory gives way first. */
    char aside[CODA_PATH_SIZE + 128];
    snprintf(aside, sizeof aside, "%s.old", from);
    if (rename(to, aside) != 0 || rename(from, to) != 0)
        return model_system_error(error, "rename to", to);
    *exchanged = rename(aside, from) == 0;
    return CODA_OK;
}
