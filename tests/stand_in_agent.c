/* Stands in for an agent: notes in /notes how it is run, then listens on port 8353; ends at once if /crash is there. */

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static void note_link(FILE *notes, const char *name)
{
    char path[64], target[128];
    snprintf(path, sizeof path, "/proc/self/ns/%s", name);
    ssize_t length = readlink(path, target, sizeof target - 1);
    target[length < 0 ? 0 : length] = 0;
    fprintf(notes, "%s=%s\n", name, target);
}

static void note_status(FILE *notes, const char *key)
{
    char line[512];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, key, strlen(key)) && line[strlen(key)] == ':')
            fprintf(notes, "%s=%s", key, line + strlen(key) + 2);
}

int main(int argc, char **argv)
{
    struct stat status;
    char cwd[256];
    FILE *notes = fopen("/notes", "a");
    if (!notes)
        return 4;
    fprintf(notes, "program=%s\n", argv[0]);
    for (int i = 1; i < argc; i++)
        fprintf(notes, "argument=%s\n", argv[i]);
    note_link(notes, "net");
    note_link(notes, "pid");
    note_link(notes, "mnt");
    note_status(notes, "CapEff");
    note_status(notes, "Seccomp");
    note_status(notes, "Uid");
    fprintf(notes, "cwd=%s\nMODE=%s\nHOME=%s\n", getcwd(cwd, sizeof cwd), getenv("MODE"), getenv("HOME"));
    fprintf(notes, "null=%d\n", open("/dev/null", O_RDWR) >= 0);
    fprintf(notes, "sys=%d\n", !stat("/sys/class", &status));
    fprintf(notes, "usr=%d\n", !stat("/usr/bin/bash", &status));
    fprintf(notes, "hosts=%ld\n", stat("/etc/hosts", &status) ? -1 : (long)status.st_size);
    fclose(notes);
    if (!stat("/crash", &status))
        return 3;

    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(8353), .sin_addr = {htonl(INADDR_ANY)}};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 8))
        return 5;
    for (;;) {
        int connection = accept(listener, NULL, NULL);
        if (connection >= 0)
            close(connection);
    }
}
