/* A server that knows of paths: what it asks for, and what it is told. One line each. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "scoutline.h"

static void said(const char *what, int result) {
    printf("%s: %s\n", what, result < 0 ? strerrorname_np(errno) : "ok");
    fflush(stdout);
}

static void set(const char *what, int s, int option, int value) {
    said(what, setsockopt(s, SOL_SCOUT, option, &value, sizeof value));
}

static void join(const char *what, int s, const char *name) {
    said(what, setsockopt(s, SOL_SCOUT, SO_SCOUT_CLASS, name, strlen(name)));
}

static void tell(int s) {
    char name[SCOUT_CLASS_MAX + 1];
    int priority = -2, background = -2, extend = -2;
    int deadline = -2, weight = -2;
    socklen_t len = sizeof name, one = sizeof(int), two = one, three = one, four = one, five = one;
    if (getsockopt(s, SOL_SCOUT, SO_SCOUT_CLASS, name, &len) < 0 ||
        getsockopt(s, SOL_SCOUT, SO_SCOUT_PRIORITY, &priority, &one) < 0 ||
        getsockopt(s, SOL_SCOUT, SO_BACKGROUND, &background, &two) < 0 ||
        getsockopt(s, SOL_SCOUT, SO_SCOUT_EXTEND, &extend, &three) < 0 ||
        getsockopt(s, SOL_SCOUT, SO_SCOUT_DEADLINE, &deadline, &four) < 0 ||
        getsockopt(s, SOL_SCOUT, SO_SCOUT_WEIGHT, &weight, &five) < 0)
        said("tell", -1);
    else if (deadline != -1 || weight != -1)
        printf("class %s, deadline %d, weight %d\n", name, deadline, weight);
    else
        printf("class %s, priority %d, background %d, extend %d\n", name, priority, background, extend);
    fflush(stdout);
}

static void await(int s) {
    char byte;
    if (read(s, &byte, 1) != 1)
        exit(1);
}

static struct sockaddr_in at(const char *address, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, address, &to.sin_addr);
    return to;
}

int main(void) {
    /* Not on paths: unbound datagrams, and what goes to the machine itself. */
    int datagram = socket(AF_INET, SOCK_DGRAM, 0);
    set("datagram", datagram, SO_BACKGROUND, 1);
    struct sockaddr_in here = at("127.0.0.1", 7001);
    int local = socket(AF_INET, SOCK_STREAM, 0), other = socket(AF_INET, SOCK_STREAM, 0);
    set("before bind", local, SO_BACKGROUND, 1);
    said("bind", bind(local, (struct sockaddr *)&here, sizeof here));
    said("listen", listen(local, 1));
    said("connect", connect(other, (struct sockaddr *)&here, sizeof here));
    set("kernel's", other, SO_BACKGROUND, 1);

    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    set("rise before bind", listener, SO_SCOUT_PRIORITY, 1);
    struct sockaddr_in any = at("0.0.0.0", 7000);
    said("bind", bind(listener, (struct sockaddr *)&any, sizeof any));
    said("listen", listen(listener, 5));
    tell(listener);
    set("lower", listener, SO_SCOUT_PRIORITY, 1);
    tell(listener);
    puts("ready");
    fflush(stdout);

    int s = accept(listener, NULL, NULL);
    tell(s);
    set("higher", s, SO_SCOUT_PRIORITY, 3);
    set("as class", s, SO_SCOUT_PRIORITY, -1);
    set("too high", s, SO_SCOUT_PRIORITY, 64);
    join("top", s, "top");
    join("nosuch", s, "nosuch");
    join("too long", s, "a name of more bytes than there is room for in a call");
    join("low", s, "low");
    tell(s);
    set("background", s, SO_BACKGROUND, 1);
    tell(s);
    puts("lowered");
    fflush(stdout);
    await(s);

    /* There is a permission now. */
    set("foreground", s, SO_BACKGROUND, 0);
    join("top", s, "top");
    set("higher", s, SO_SCOUT_PRIORITY, 5);
    set("highest", s, SO_SCOUT_PRIORITY, 63);
    tell(s);
    set("as class", s, SO_SCOUT_PRIORITY, -1);
    join("full", s, "full");
    join("video", s, "video");
    tell(s);
    set("sooner", s, SO_SCOUT_DEADLINE, 999);
    set("never", s, SO_SCOUT_DEADLINE, 60000001);
    set("later", s, SO_SCOUT_DEADLINE, 4000);
    tell(s);
    set("more weight", s, SO_SCOUT_WEIGHT, 201);
    set("weight", s, SO_SCOUT_WEIGHT, 200);
    tell(s);
    puts("raised");
    fflush(stdout);
    await(s);
    tell(s);
    return 0;
}
