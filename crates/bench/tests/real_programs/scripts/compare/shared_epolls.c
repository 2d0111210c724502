/* One epoll in several processes: one list of what is in it, whoever changes it, and each event of an edge or of a single
 * shot told to one of those who wait. */
#include "compare.h"

enum { NOT_MS = 150 };

/* The two take turns by these: what one does is done when the other goes on. */
static int to_child[2], to_parent[2];

static void hand(int to[2]) { NEED(write(to[1], "x", 1) == 1); }
static void turn_of(int to[2]) {
    char byte;
    NEED(read(to[0], &byte, 1) == 1);
}

static void make_turns(void) { NEED(pipe(to_child) == 0 && pipe(to_parent) == 0); }

/* Prints how a child ended. */
static void wait_for(pid_t child) {
    int status;
    NEED(waitpid(child, &status, 0) == child);
    T(status);
}

static int add(int set, int fd, unsigned events, unsigned data) {
    struct epoll_event event = {.events = events, .data.u32 = data};
    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

static int change(int set, int fd, unsigned events, unsigned data) {
    struct epoll_event event = {.events = events, .data.u32 = data};
    return epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
}

/* What an epoll says within this time: events and data of each, in order of the data. */
static void says(int set, int ms) {
    struct epoll_event events[8];
    int n = epoll_wait(set, events, 8, ms);
    T(n);
    for (unsigned data = 0; data < 100; data++)
        for (int i = 0; i < n; i++)
            if (events[i].data.u32 == data) out("%u: %x", data, events[i].events);
}

/* How many of two that wait at once hear of what `tell` says: 1 for each. */
static int heard(int set, int ms) {
    struct epoll_event event;
    return epoll_wait(set, &event, 1, ms);
}

CASE(a_child_adds) {
    make_turns();
    int set = T(epoll_create1(0)), fd = accepted("A");
    pid_t child = fork();
    if (child == 0) {
        T(add(set, fd, EPOLLIN, 7));
        hand(to_parent);
        turn_of(to_child);
        _exit(0);
    }
    turn_of(to_parent);
    says(set, 0);
    tell("send A abc");
    says(set, SOON_MS);
    T(add(set, fd, EPOLLIN, 8));
    T(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    says(set, 0);
    hand(to_child);
    wait_for(child);
}

CASE(a_child_adds_while_its_parent_waits) {
    int set = T(epoll_create1(0)), fd = accepted("A");
    tell("send A abc");
    NEED(await(fd, POLLIN) == POLLIN);
    pid_t child = fork();
    if (child == 0) {
        await_sleep(getppid());
        T(add(set, fd, EPOLLIN, 7));
        _exit(0);
    }
    says(set, SOON_MS);
    wait_for(child);
    says(set, 0);
}

CASE(a_child_adds_what_it_opened_itself) {
    make_turns();
    int set = T(epoll_create1(0)), fd = accepted("A"), listening = listener();
    T(add(set, fd, EPOLLIN, 1));
    pid_t child = fork();
    if (child == 0) {
        int new = accept(listening, NULL, NULL);
        T(add(set, new, EPOLLIN, 2));
        hand(to_parent);
        turn_of(to_child);
        T(close(new));
        hand(to_parent);
        turn_of(to_child);
        _exit(0);
    }
    tell("connect B %s %d", own, port_of(listening));
    turn_of(to_parent);
    tell("send B abc");
    says(set, SOON_MS);
    /* Nobody has it any more. */
    hand(to_child);
    turn_of(to_parent);
    says(set, NOT_MS);
    tell("send A abc");
    says(set, SOON_MS);
    hand(to_child);
    wait_for(child);
}

CASE(a_child_removes) {
    make_turns();
    int set = T(epoll_create1(0)), fd = accepted("A");
    T(add(set, fd, EPOLLIN, 7));
    pid_t child = fork();
    if (child == 0) {
        T(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
        hand(to_parent);
        turn_of(to_child);
        says(set, SOON_MS);
        _exit(0);
    }
    turn_of(to_parent);
    tell("send A abc");
    says(set, NOT_MS);
    T(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    T(change(set, fd, EPOLLIN, 7));
    T(add(set, fd, EPOLLIN, 9));
    hand(to_child);
    wait_for(child);
    says(set, 0);
}

CASE(a_child_modifies) {
    make_turns();
    int set = T(epoll_create1(0)), fd = accepted("A");
    T(add(set, fd, EPOLLIN, 7));
    pid_t child = fork();
    if (child == 0) {
        T(change(set, fd, EPOLLIN | EPOLLOUT, 8));
        hand(to_parent);
        turn_of(to_child);
        T(change(set, fd, 0, 9));
        hand(to_parent);
        turn_of(to_child);
        await_sleep(getppid());
        T(change(set, fd, EPOLLIN, 10));
        _exit(0);
    }
    turn_of(to_parent);
    says(set, SOON_MS);
    tell("send A abc");
    NEED(await(fd, POLLIN) == POLLIN);
    says(set, SOON_MS);
    hand(to_child);
    turn_of(to_parent);
    says(set, NOT_MS);
    hand(to_child);
    says(set, SOON_MS);
    wait_for(child);
}

CASE(one_shot_is_told_once) {
    make_turns();
    int set = T(epoll_create1(0)), fd = accepted("A");
    T(add(set, fd, EPOLLIN | EPOLLONESHOT, 7));
    pid_t child = fork();
    if (child == 0) {
        turn_of(to_child);
        says(set, NOT_MS);
        T(change(set, fd, EPOLLIN | EPOLLONESHOT, 8));
        says(set, SOON_MS);
        hand(to_parent);
        turn_of(to_child);
        says(set, SOON_MS);
        _exit(0);
    }
    tell("send A abc");
    says(set, SOON_MS);
    says(set, NOT_MS);
    hand(to_child);
    turn_of(to_parent);
    says(set, NOT_MS);
    T(change(set, fd, EPOLLIN | EPOLLONESHOT, 9));
    hand(to_child);
    wait_for(child);
}

CASE(an_edge_is_told_once) {
    make_turns();
    int set = T(epoll_create1(0)), fd = accepted("A");
    T(add(set, fd, EPOLLIN | EPOLLET, 7));
    pid_t child = fork();
    if (child == 0) {
        turn_of(to_child);
        says(set, NOT_MS);
        hand(to_parent);
        turn_of(to_child);
        says(set, SOON_MS);
        hand(to_parent);
        _exit(0);
    }
    tell("send A abc");
    says(set, SOON_MS);
    hand(to_child);
    turn_of(to_parent);
    tell("send A def");
    hand(to_child);
    turn_of(to_parent);
    says(set, NOT_MS);
    wait_for(child);
}

/* Of two that wait at once one hears of each event. */
static void each_event_wakes_one(unsigned how) {
    make_turns();
    int set = T(epoll_create1(0)), fd = accepted("A");
    T(add(set, fd, EPOLLIN | how, 7));
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 3; i++) {
            turn_of(to_child);
            char got = '0' + heard(set, 700);
            NEED(write(to_parent[1], &got, 1) == 1);
        }
        _exit(0);
    }
    pid_t waits = fork();
    if (waits == 0) {
        close(control);
        for (int i = 0; i < 3; i++) {
            turn_of(to_child);
            char got = '0' + heard(set, 700);
            NEED(write(to_parent[1], &got, 1) == 1);
        }
        _exit(0);
    }
    for (int i = 0; i < 3; i++) {
        hand(to_child);
        hand(to_child);
        await_sleep(child);
        await_sleep(waits);
        tell("send A x");
        char got[2];
        NEED(read(to_parent[0], got, 1) == 1 && read(to_parent[0], got + 1, 1) == 1);
        T(got[0] + got[1] - 2 * '0');
        char byte[4];
        T(recv(fd, byte, sizeof byte, MSG_DONTWAIT));
        if (how & EPOLLONESHOT) T(change(set, fd, EPOLLIN | how, 7));
    }
    wait_for(child);
    wait_for(waits);
}

CASE(of_two_that_wait_one_hears_an_edge) { each_event_wakes_one(EPOLLET); }

CASE(of_two_that_wait_one_hears_a_single_shot) { each_event_wakes_one(EPOLLONESHOT); }

CASE(a_level_is_told_to_both) {
    int set = T(epoll_create1(0)), fd = accepted("A");
    T(add(set, fd, EPOLLIN, 7));
    pid_t child = fork();
    if (child == 0) {
        says(set, SOON_MS);
        _exit(0);
    }
    await_sleep(child);
    tell("send A abc");
    says(set, SOON_MS);
    wait_for(child);
}

CASE(exclusive_in_both) {
    make_turns();
    int set = T(epoll_create1(0)), fd = listener();
    pid_t child = fork();
    if (child == 0) {
        T(add(set, fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET, 7));
        hand(to_parent);
        turn_of(to_child);
        char got = '0' + heard(set, 700);
        NEED(write(to_parent[1], &got, 1) == 1);
        turn_of(to_child);
        _exit(0);
    }
    turn_of(to_parent);
    T(change(set, fd, EPOLLIN, 8));
    T(add(set, fd, EPOLLIN | EPOLLEXCLUSIVE, 8));
    pid_t waits = fork();
    if (waits == 0) {
        char got = '0' + heard(set, 700);
        NEED(write(to_parent[1], &got, 1) == 1);
        _exit(0);
    }
    hand(to_child);
    await_sleep(child);
    await_sleep(waits);
    tell("connect A %s %d", own, port_of(fd));
    char got[2];
    NEED(read(to_parent[0], got, 1) == 1 && read(to_parent[0], got + 1, 1) == 1);
    T(got[0] + got[1] - 2 * '0');
    hand(to_child);
    wait_for(child);
    wait_for(waits);
}

/* Both before it waits and while it does. */
CASE(a_child_dies) {
    make_turns();
    int set = T(epoll_create1(0)), fd = accepted("A"), other = connected("B");
    T(add(set, fd, EPOLLIN, 1));
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child == 0) {
            if (i == 0) T(add(set, other, EPOLLIN, 2));
            hand(to_parent);
            for (;;) heard(set, -1);
        }
        turn_of(to_parent);
        await_sleep(child);
        NEED(kill(child, SIGKILL) == 0);
        wait_for(child);
    }
    says(set, NOT_MS);
    tell("send B abc");
    says(set, SOON_MS);
    tell("send A abc");
    struct epoll_event events[2];
    while (epoll_wait(set, events, 2, SOON_MS) == 1) usleep(1000);
    T(epoll_ctl(set, EPOLL_CTL_DEL, other, NULL));
    T(epoll_ctl(set, EPOLL_CTL_DEL, other, NULL));
    says(set, 0);
}

CASE(a_parent_dies) {
    make_turns();
    int set = T(epoll_create1(0)), fd = accepted("A");
    T(add(set, fd, EPOLLIN, 1));
    pid_t parent = fork();
    if (parent == 0) {
        if (fork() == 0) {
            hand(to_parent);
            turn_of(to_child);
            says(set, NOT_MS);
            hand(to_parent);
            says(set, SOON_MS);
            T(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
            hand(to_parent);
            _exit(0);
        }
        for (;;) pause();
    }
    turn_of(to_parent);
    NEED(kill(parent, SIGKILL) == 0);
    wait_for(parent);
    T(close(set));
    T(close(fd));
    hand(to_child);
    turn_of(to_parent);
    tell("send A abc");
    turn_of(to_parent);
}

/* What is in an epoll stays in it as long as anybody has a descriptor of it. */
CASE(closed_by_who_waits) {
    make_turns();
    int set = T(epoll_create1(0)), fd = accepted("A");
    T(add(set, fd, EPOLLIN, 7));
    pid_t child = fork();
    if (child == 0) {
        turn_of(to_child);
        char bytes[8];
        T(recv(fd, bytes, sizeof bytes, 0));
        T(close(fd));
        hand(to_parent);
        turn_of(to_child);
        _exit(0);
    }
    T(close(fd));
    says(set, NOT_MS);
    tell("send A abc");
    says(set, SOON_MS);
    T(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    hand(to_child);
    turn_of(to_parent);
    says(set, NOT_MS);
    /* Its number and, perhaps, its place are another's. */
    int next = accepted("B");
    tell("send B abc");
    NEED(await(next, POLLIN) == POLLIN);
    says(set, NOT_MS);
    hand(to_child);
    wait_for(child);
}

CASE(added_by_two_descriptors) {
    make_turns();
    int set = T(epoll_create1(0)), fd = accepted("A");
    T(add(set, fd, EPOLLIN, 1));
    pid_t child = fork();
    if (child == 0) {
        int again = T(dup(fd)), third = T(dup(fd));
        T(add(set, again, EPOLLIN, 2));
        T(add(set, third, EPOLLIN | EPOLLONESHOT, 3));
        hand(to_parent);
        turn_of(to_child);
        says(set, SOON_MS);
        T(epoll_ctl(set, EPOLL_CTL_DEL, again, NULL));
        hand(to_parent);
        turn_of(to_child);
        _exit(0);
    }
    turn_of(to_parent);
    tell("send A abc");
    says(set, SOON_MS);
    T(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    hand(to_child);
    turn_of(to_parent);
    says(set, NOT_MS);
    hand(to_child);
    wait_for(child);
}

CASE(within_another) {
    make_turns();
    int outer = T(epoll_create1(0)), set = T(epoll_create1(0)), fd = accepted("A");
    T(add(outer, set, EPOLLIN, 1));
    pid_t child = fork();
    if (child == 0) {
        T(add(set, fd, EPOLLIN, 2));
        hand(to_parent);
        turn_of(to_child);
        says(outer, SOON_MS);
        says(set, SOON_MS);
        T(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
        hand(to_parent);
        turn_of(to_child);
        await_sleep(getppid());
        T(add(set, fd, EPOLLIN, 3));
        _exit(0);
    }
    turn_of(to_parent);
    says(outer, NOT_MS);
    tell("send A abc");
    says(outer, SOON_MS);
    says(set, SOON_MS);
    T(now_has(set, POLLIN));
    hand(to_child);
    turn_of(to_parent);
    says(outer, NOT_MS);
    T(now_has(set, POLLIN));
    hand(to_child);
    says(outer, SOON_MS);
    wait_for(child);
}

CASE(descriptors_of_the_kernels) {
    make_turns();
    int set = T(epoll_create1(0)), fd = accepted("A"), ends[2];
    T(pipe(ends));
    T(add(set, fd, EPOLLIN, 1));
    pid_t child = fork();
    if (child == 0) {
        T(add(set, ends[0], EPOLLIN, 2));
        T(write(ends[1], "x", 1));
        hand(to_parent);
        turn_of(to_child);
        _exit(0);
    }
    turn_of(to_parent);
    says(set, SOON_MS);
    tell("send A abc");
    NEED(await(fd, POLLIN) == POLLIN);
    usleep(1000);
    says(set, SOON_MS);
    T(epoll_ctl(set, EPOLL_CTL_DEL, ends[0], NULL));
    says(set, SOON_MS);
    hand(to_child);
    wait_for(child);
}

struct sleeper {
    int set;
    volatile pid_t thread;
    int result;
    unsigned data;
};

static void *sleep_in(void *given) {
    struct sleeper *sleeper = given;
    struct epoll_event event = {0};
    sleeper->thread = gettid();
    sleeper->result = epoll_wait(sleeper->set, &event, 1, SOON_MS);
    sleeper->data = event.data.u32;
    return NULL;
}

/* A thread sleeps there already when the process forks. */
CASE(forked_while_a_thread_waits) {
    for (int filled = 0; filled < 2; filled++) {
        int fd = accepted(filled ? "B" : "A"), with = accepted(filled ? "D" : "C");
        struct sleeper sleeper = {.set = T(epoll_create1(0))};
        if (filled) T(add(sleeper.set, with, EPOLLIN, 1));
        pthread_t thread;
        NEED(pthread_create(&thread, NULL, sleep_in, &sleeper) == 0);
        while (!sleeper.thread) usleep(1000);
        await_sleep(sleeper.thread);
        pid_t child = fork();
        if (child == 0) {
            T(add(sleeper.set, fd, EPOLLOUT, 2));
            _exit(0);
        }
        NEED(pthread_join(thread, NULL) == 0);
        T(sleeper.result);
        T(sleeper.data);
        wait_for(child);
        T(close(sleeper.set));
    }
}

/* Many that come and go in both. */
CASE(both_change_it_all_the_time) {
    make_turns();
    enum { MANY = 12, ROUNDS = 400 };
    int set = T(epoll_create1(0)), fds[MANY];
    for (int i = 0; i < MANY; i++) {
        char name[2] = {'a' + i, 0};
        fds[i] = accepted(name);
        NEED(add(set, fds[i], EPOLLOUT, i) == 0);
    }
    pid_t child = fork();
    int first = child == 0 ? 0 : MANY / 2, wrong = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int i = first; i < first + MANY / 2; i++) {
            struct epoll_event events[MANY];
            wrong += epoll_ctl(set, EPOLL_CTL_DEL, fds[i], NULL) != 0;
            int n = epoll_wait(set, events, MANY, 0);
            for (int k = 0; k < n; k++) wrong += events[k].data.u32 == (unsigned)i;
            wrong += add(set, fds[i], EPOLLOUT, i) != 0;
        }
    T(wrong);
    if (child == 0) _exit(0);
    wait_for(child);
    struct epoll_event events[MANY + 1];
    T(epoll_wait(set, events, MANY + 1, 0));
}

/* Children that change it, or wait in it, are killed wherever they are: nothing that they had keeps the others out, and no
 * event is lost but with the one that took it. */
CASE(killed_in_the_midst) {
    enum { MANY = 4, ROUNDS = 200 };
    make_turns();
    int set = T(epoll_create1(0)), fds[MANY], missed = 0, refused = 0;
    for (int i = 0; i < MANY; i++) {
        char name[2] = {'a' + i, 0};
        fds[i] = accepted(name);
    }
    NEED(add(set, fds[0], EPOLLIN, 0) == 0 && add(set, fds[1], EPOLLOUT, 1) == 0);
    tell("send a abc");
    NEED(await(fds[0], POLLIN) == POLLIN);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t child = fork();
        if (child == 0) {
            hand(to_parent);
            for (;;) {
                struct epoll_event events[MANY];
                if (round % 2) epoll_wait(set, events, MANY, 0);
                add(set, fds[2 + round % 2], EPOLLOUT, 2);
                epoll_ctl(set, EPOLL_CTL_DEL, fds[2 + round % 2], NULL);
            }
        }
        turn_of(to_parent);
        usleep(round * 137 % 1500);
        NEED(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
        /* What is level-triggered is there for who looks next. */
        struct epoll_event events[MANY];
        int n = epoll_wait(set, events, MANY, SOON_MS), found = 0;
        for (int i = 0; i < n; i++) found |= 1 << events[i].data.u32;
        missed += (found & 3) != 3;
        epoll_ctl(set, EPOLL_CTL_DEL, fds[2 + round % 2], NULL);
        refused += add(set, fds[2 + round % 2], EPOLLOUT, 3) != 0;
        refused += epoll_ctl(set, EPOLL_CTL_DEL, fds[2 + round % 2], NULL) != 0;
    }
    T(missed);
    T(refused);
    /* And who sleeps is woken. */
    NEED(epoll_ctl(set, EPOLL_CTL_DEL, fds[0], NULL) == 0 && epoll_ctl(set, EPOLL_CTL_DEL, fds[1], NULL) == 0);
    NEED(add(set, fds[3], EPOLLIN | EPOLLET, 3) == 0);
    pid_t child = fork();
    if (child == 0) {
        says(set, SOON_MS);
        _exit(0);
    }
    await_sleep(child);
    tell("send d abc");
    wait_for(child);
    says(set, 0);
}

static int started(const char *role) { return role[0]; }
