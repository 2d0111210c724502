/* Duplicates, children, new programs, and descriptors that are passed: who holds a socket, and when it ends. */
#include "compare.h"
#include <pthread.h>
#include <stdatomic.h>

extern char **environ;

static void wait_for(pid_t child) {
    int status = -1;
    NEED(waitpid(child, &status, 0) == child);
    out("child ended with %x", status);
}

static int pass(int through, int fd) {
    char byte = 'p', space[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    return sendmsg(through, &message, 0);
}

static int take(int through, int flags) {
    char byte, space[CMSG_SPACE(sizeof(int))];
    int fd;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (recvmsg(through, &message, flags) < 0) return -1;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* Whether an epoll tells, within some time, of all that have these numbers as their data. */
static int are_told_of(int set, int all) {
    struct epoll_event events[8];
    int seen = 0, got;
    for (int ms = 0; ms < SOON_MS && (seen & all) != all && (got = epoll_wait(set, events, 8, SOON_MS)) > 0; ms++) {
        for (int i = 0; i < got; i++) seen |= 1 << events[i].data.u32;
        if ((seen & all) != all) usleep(1000);
    }
    return (seen & all) == all;
}

/* One of several that serve what each of them was passed: a listening socket, one that is bound only, and datagrams. */
static void work_until_end(int through) {
    struct pollfd served[4] = {{.fd = through}};
    for (int i = 1; i < 4; i++) served[i].fd = take(through, 0);
    NEED(listen(served[2].fd, 5) == 0);
    NEED(write(through, "r", 1) == 1);
    for (int i = 0; i < 4; i++) {
        served[i].events = POLLIN;
        nonblock(served[i].fd);
    }
    for (char bytes[16]; poll(served, 4, -1) > 0 && !served[0].revents;) {
        for (int i = 1; i < 3; i++) {
            int new = served[i].revents ? accept(served[i].fd, NULL, NULL) : -1;
            if (new < 0) continue;
            if (recv(new, bytes, 3, MSG_WAITALL) == 3) send(new, bytes, 3, MSG_NOSIGNAL);
            close(new);
        }
        struct name from = {0};
        socklen_t len = sizeof from;
        int got = served[3].revents ? recvfrom(served[3].fd, bytes, 16, 0, (struct sockaddr *)&from, &len) : -1;
        if (got > 0) sendto(served[3].fd, bytes, got, 0, (struct sockaddr *)&from, len);
    }
}

/* Roles of a program that was started: what it finds under which number. */
static int started(const char *role) {
    case_name = role;
    char bytes[16] = "";
    int fd = atoi(strchr(role, '-') + 1);
    if (!strncmp(role, "say", 3)) {
        T(send(fd, "hello", 5, 0));
    } else if (!strncmp(role, "inetd", 5)) {
        /* As inetd's programs do: standard input and output are the connection, which only has `read` and `write`. */
        int n = read(0, bytes, 16);
        return write(fd, bytes, n) == n ? 0 : 9;
    } else if (!strncmp(role, "upload", 6)) {
        static char large[250000];
        use_family_of(getenv("PEER"));
        struct name to = name_of(getenv("PEER"), atoi(getenv("PORT")));
        int new = socket(family, SOCK_STREAM, 0);
        T(connect(new, ADDRESS(to)));
        T(send(new, large, sizeof large, 0));
    } else if (!strncmp(role, "few", 3)) {
        T(send(fd, "few", 3, 0));
        for (int one = 0; one < 1024; one++)
            if (fcntl(one, F_GETFD) >= 0) out("%d is open", one);
        T(getcwd(bytes, sizeof bytes) != NULL);
        out("in %s", bytes);
    } else if (!strncmp(role, "closed", 6)) {
        T(fcntl(fd, F_GETFD));
        T(send(fd, "x", 1, 0));
    } else if (!strncmp(role, "serve", 5)) {
        T(option(fd, SOL_SOCKET, SO_ACCEPTCONN));
        T(option(fd, SOL_SOCKET, SO_TYPE));
        T(port_of(fd) > 0);
        int new = T(accept(fd, NULL, NULL));
        T(recv(new, bytes, 3, MSG_WAITALL));
        T(write(new, bytes, 3));
    } else if (!strncmp(role, "state", 5)) {
        T((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
        T(recv(fd, bytes, 16, MSG_DONTWAIT));
        T(option(fd, IPPROTO_TCP, TCP_NODELAY));
        int set = T(epoll_create1(0));
        struct epoll_event event = {.events = EPOLLIN};
        T(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
        T(shutdown(fd, SHUT_WR));
        T(epoll_wait(set, &event, 1, SOON_MS));
        T(recv(fd, bytes, 16, 0));
    } else if (!strncmp(role, "again", 5)) {
        /* Through one program more. */
        execl(program, program, "started", "say-5", NULL);
        return 9;
    } else if (!strncmp(role, "waits", 5)) {
        /* An epoll goes on with what is in it: a socket twice, a pipe, a spent one-shot, an epoll around it. */
        int around = fd + 1, pipe_end = fd + 2, twice = fd + 4, new;
        struct epoll_event events[4] = {{0}}, change = {.events = EPOLLIN, .data.u64 = 0x1234567800000009};
        T(write(pipe_end, "r", 1));
        T(await(around, POLLIN) & POLLIN);
        T(epoll_wait(around, events, 4, SOON_MS) > 0);
        out("%x %u", events[0].events, events[0].data.u32);
        out("three are told of: %d", are_told_of(fd, 7));
        T(epoll_ctl(fd, EPOLL_CTL_ADD, twice, &change));
        T(epoll_ctl(fd, EPOLL_CTL_DEL, twice, NULL));
        T(epoll_ctl(fd, EPOLL_CTL_DEL, twice, NULL));
        T(epoll_ctl(fd, EPOLL_CTL_MOD, atoi(getenv("ONCE")), &change));
        out("and what was spent: %d", are_told_of(fd, 1 << 9));
        T(read(atoi(getenv("ONCE")), bytes, 16));
        /* A candidate that was in it connects. */
        use_family_of(getenv("PEER"));
        struct name to = name_of(getenv("PEER"), atoi(getenv("PORT")));
        T(connect(new = atoi(getenv("NEW")), ADDRESS(to)));
        change = (struct epoll_event){.events = EPOLLOUT, .data.u32 = 4};
        T(epoll_ctl(fd, EPOLL_CTL_ADD, new, &change));
        T(epoll_ctl(fd, EPOLL_CTL_MOD, new, &change));
    } else if (!strncmp(role, "receive", 7)) {
        int stream = T(take(fd, 0)), twin = T(take(fd, 0)), listening = T(take(fd, 0)), datagrams = T(take(fd, MSG_CMSG_CLOEXEC));
        T(fcntl(datagrams, F_GETFD));
        T((fcntl(stream, F_GETFL) & O_NONBLOCK) != 0);
        T(option(stream, IPPROTO_TCP, TCP_NODELAY));
        for (int i = 0; i < 3; i++) {
            int one = i == 0 ? stream : i == 1 ? twin : datagrams;
            T(option(one, SOL_SOCKET, SO_MARK));
            T(option(one, SOL_SOCKET, SO_PRIORITY));
        }
        T(option(datagrams, IPPROTO_IP, IP_PKTINFO));
        T(option(datagrams, IPPROTO_IP, IP_TTL));
        T(option(datagrams, SOL_SOCKET, SO_TIMESTAMPNS));
        T(set_option(datagrams, IPPROTO_IP, IP_RECVTOS, 1));
        T(recv(stream, bytes, 2, 0));
        T(close(stream));
        T(recv(twin, bytes, 16, 0));
        T(send(twin, "passed", 6, 0));
        for (int i = 0; i < 2; i++) {
            int new = T(accept(listening, NULL, NULL));
            T(recv(new, bytes, 3, MSG_WAITALL));
            T(send(new, bytes, 3, 0));
            T(close(new));
        }
        T(recv(datagrams, bytes, 16, 0));
        T(send(datagrams, "there", 5, 0));
    } else if (!strncmp(role, "worker", 6)) {
        work_until_end(fd);
    }
    return 0;
}

static void execute(const char *role) {
    execl(program, program, "started", role, NULL);
    _exit(6);
}

/* What is duplicated before anybody knows where it leads is one socket afterwards. */
CASE(duplicated_before_it_leads_anywhere) {
    char bytes[16];
    int one = socket(family, SOCK_STREAM, 0), other = dup(one), third = fcntl(one, F_DUPFD, 20);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 3};
    T(epoll_ctl(set, EPOLL_CTL_ADD, third, &event));
    struct name to = name_of(peer, atoi(tell("listen L")));
    T(connect(one, ADDRESS(to)));
    tell("accept L A");
    T(write(other, "hello", 5));
    tell("read A 5");
    tell("send A hi");
    T(epoll_wait(set, &event, 1, SOON_MS));
    T(recv(third, bytes, 16, 0));
    T(close(one));
    T(send(other, "x", 1, 0));
    tell("read A 1");
    T(close(other));
    T(close(third));
    tell("drain A");
    int bound = socket(family, SOCK_STREAM, 0), twin = dup2(bound, 40);
    struct name here = name_of(own, 0);
    T(bind(bound, ADDRESS(here)));
    T(listen(twin, 2));
    T(port_of(twin) == port_of(bound));
    T(close(bound));
    out("peer connects: %s", tell("connect B %s %d", own, port_of(twin)));
    int new = T(accept(twin, NULL, NULL) >= 0);
    NEED(new > 0);
    int datagrams = socket(family, SOCK_DGRAM, 0), same = dup(datagrams);
    to = name_of(peer, atoi(tell("bind D")));
    T(connect(datagrams, ADDRESS(to)));
    T(send(same, "by its twin", 11, 0));
    tell("recvfrom D");
}

/* What is made before a fork and leads somewhere only after it is one socket in both processes. */
CASE(made_before_a_fork) {
    char bytes[16];
    int fd = socket(family, SOCK_STREAM, 0), twin = dup(fd), set = epoll_create1(0), ends[2];
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 3};
    NEED(fd > 0 && twin > 0 && pipe(ends) == 0);
    struct name to = name_of(peer, atoi(tell("listen L")));
    pid_t child = fork();
    if (child == 0) {
        T(connect(fd, ADDRESS(to)));
        T(send(fd, "child", 5, 0));
        T(write(ends[1], "c", 1));
        T(recv(fd, bytes, 16, 0));
        _exit(0);
    }
    NEED(read(ends[0], bytes, 1) == 1);
    tell("accept L A");
    tell("read A 5");
    T(await(fd, POLLOUT | POLLRDHUP));
    T(getpeername(twin, NULL, NULL));
    T(port_of(fd) == port_of(twin));
    T(epoll_ctl(set, EPOLL_CTL_ADD, twin, &event));
    tell("send A child");
    wait_for(child);
    T(close(fd));
    T(write(twin, "parent", 6));
    tell("read A 6");
    tell("send A parent");
    T(epoll_wait(set, &event, 1, SOON_MS));
    T(recv(twin, bytes, 16, 0));
    T(connect(twin, ADDRESS(to)));
    T(shutdown(twin, SHUT_WR));
    tell("drain A");
    T(close(twin));
}

/* The last of those who have it closes it, whatever the others have seen of it. */
CASE(made_before_a_fork_and_closed) {
    for (int way = 0; way < 4; way++) {
        int fd = socket(family, SOCK_STREAM, 0), null = open("/dev/null", O_RDWR), ends[2];
        NEED(fd > 0 && pipe(ends) == 0);
        struct name to = name_of(peer, atoi(tell("listen %c", 'L' + way)));
        pid_t child = fork();
        if (child == 0) {
            T(connect(fd, ADDRESS(to)));
            T(send(fd, "child", 5, 0));
            NEED(write(ends[1], "c", 1) == 1);
            T(close(fd));
            _exit(0);
        }
        char byte;
        NEED(read(ends[0], &byte, 1) == 1);
        wait_for(child);
        tell("accept %c A", 'L' + way);
        tell("read A 5");
        if (way == 0) T(close(fd));
        if (way == 1) T(dup2(null, fd));
        if (way == 2) T(close_range(fd, fd, 0));
        if (way == 3) {
            /* A child of the one that has not seen it yet has it as well. */
            child = fork();
            if (child == 0) {
                T(send(fd, "grandchild", 10, 0));
                _exit(0);
            }
            wait_for(child);
            T(close(fd));
        }
        tell("drain A");
        close(null);
        close(ends[0]);
        close(ends[1]);
    }
}

/* A helper binds, as one with privileges may, and is gone before anybody listens. */
CASE(bound_by_a_child) {
    char bytes[16];
    struct name here = name_of(own, 0);
    for (int kind = SOCK_STREAM; kind <= SOCK_DGRAM; kind++) {
        int fd = socket(family, kind, 0);
        pid_t child = fork();
        if (child == 0) {
            T(bind(fd, ADDRESS(here)));
            _exit(0);
        }
        wait_for(child);
        T(port_of(fd) > 0);
        if (kind == SOCK_STREAM) {
            T(listen(fd, 2));
            out("peer connects: %s", tell("connect A %s %d", own, port_of(fd)));
            int new = accept(fd, NULL, NULL);
            T(new > 0);
            tell("send A to");
            T(recv(new, bytes, 16, 0));
        } else {
            tell("bind D");
            tell("sendto D %s %d datagram", own, port_of(fd));
            T(recv(fd, bytes, 16, 0));
        }
    }
}

/* Who closes it just then is none of those who have it. */
CASE(closed_while_a_child_connects) {
    struct name to = name_of(peer, atoi(tell("listen L")));
    int other = open("/dev/null", O_RDWR);
    for (int i = 0; i < 60; i++) {
        int fd = socket(family, SOCK_STREAM, 0);
        pid_t child = fork();
        if (child == 0) {
            if (connect(fd, ADDRESS(to)) != 0 || send(fd, "x", 1, 0) != 1) _exit(1);
            close(fd);
            _exit(0);
        }
        for (volatile int spin = 0; spin < i / 3 * 40000; spin++) continue;
        if (i % 3 == 0) close(fd);
        if (i % 3 == 1) close_range(fd, fd, 0);
        if (i % 3 == 2) dup2(other, fd);
        int status;
        NEED(waitpid(child, &status, 0) == child && status == 0);
        tell("accept L A");
        tell("drain A");
        if (i % 3 == 2) close(fd);
    }
    close(other);
}

/* Connections come and go while another thread starts programs, which have whatever is open just then. */
static int serves;
static atomic_int wrong, asking;

static void *echo_all(void *nothing) {
    char bytes[16];
    for (int new; (new = accept(serves, NULL, NULL)) >= 0; close(new)) {
        int got = recv(new, bytes, sizeof bytes, 0);
        if (got > 0) send(new, bytes, got, MSG_NOSIGNAL);
    }
    return nothing;
}

static void *ask_all(void *which) {
    struct name to = name_of(own, port_of(serves));
    time_t begun = time(NULL);
    for (long i = 0; i < 1000 && time(NULL) < begun + 10; i++) {
        long sent = (long)which << 32 | i, got = 0;
        int fd = socket(family, SOCK_STREAM, 0);
        if (connect(fd, ADDRESS(to)) != 0 || send(fd, &sent, sizeof sent, MSG_NOSIGNAL) != sizeof sent) wrong++;
        if (recv(fd, &got, sizeof got, MSG_WAITALL) != sizeof got || got != sent) wrong++;
        if (close(fd) != 0) wrong++;
    }
    asking--;
    return NULL;
}

CASE(programs_started_beside_those_who_close) {
    pthread_t threads[5];
    char *arguments[] = {"true", NULL};
    serves = listener();
    asking = 3;
    for (long i = 0; i < 5; i++) pthread_create(&threads[i], NULL, i < 2 ? echo_all : ask_all, (void *)i);
    for (int i = 0; asking > 0; i++) {
        pid_t child = -1;
        int status = -1;
        if (i % 8 == 7) status = system("true");
        else if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == 0) waitpid(child, &status, 0);
        if (status != 0) wrong++;
    }
    out("wrong: %d", wrong);
    shutdown(serves, SHUT_RDWR);
    for (int i = 0; i < 5; i++) pthread_join(threads[i], NULL);
    close(serves);
}

/* A program that is given an environment without anything of ours has the same network. */
CASE(started_with_an_environment_of_its_own) {
    char port[24], server[64];
    snprintf(port, sizeof port, "PORT=%d", atoi(tell("listen L")));
    snprintf(server, sizeof server, "PEER=%s", peer);
    char *arguments[] = {(char *)program, "started", "upload-0", NULL}, *environment[] = {port, server, NULL};
    for (int way = 0; way < 3; way++) {
        pid_t child = -1;
        if (way == 0 && (child = fork()) == 0) _exit(execve(program, arguments, environment));
        if (way == 1 && (child = vfork()) == 0) _exit(execve(program, arguments, environment));
        if (way == 2) T(posix_spawn(&child, program, NULL, NULL, arguments, environment));
        wait_for(child);
        tell("accept L A");
        tell("drain A");
    }
}

/* Those who wait for several see it, too. */
CASE(bound_by_a_child_and_waited_for) {
    tell("bind D");
    for (int way = 0; way < 3; way++) {
        int fd = socket(family, SOCK_DGRAM, 0), port, ends[2], set = epoll_create1(0);
        struct name here = name_of(own, 0);
        struct epoll_event event = {.events = EPOLLIN};
        struct timeval soon = {2, 0};
        fd_set in;
        NEED(pipe(ends) == 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
        pid_t child = fork();
        if (child == 0) {
            T(bind(fd, ADDRESS(here)));
            port = port_of(fd);
            NEED(write(ends[1], &port, sizeof port) == sizeof port);
            _exit(0);
        }
        NEED(read(ends[0], &port, sizeof port) == sizeof port);
        tell("sendto D %s %d datagram", own, port);
        FD_ZERO(&in);
        FD_SET(fd, &in);
        if (way == 0) T(select(fd + 1, &in, NULL, NULL, &soon));
        if (way == 1) T(epoll_wait(set, &event, 1, 2000));
        if (way == 2) T(await(fd, POLLIN) & POLLIN);
        wait_for(child);
        char bytes[16];
        T(recv(fd, bytes, 16, MSG_DONTWAIT));
        close(set);
    }
}

/* The parent connects, and its children, which have a socket of their own as well, go on with both. */
CASE(children_of_before) {
    int fd = socket(family, SOCK_STREAM, 0), begin[2], done[2];
    NEED(fd > 0 && pipe(begin) == 0 && pipe(done) == 0);
    struct name to = name_of(peer, atoi(tell("listen L")));
    for (int i = 0; i < 3; i++) {
        if (fork() == 0) {
            char byte;
            NEED(read(begin[0], &byte, 1) == 1);
            int own_one = socket(family, SOCK_STREAM, 0);
            T(connect(own_one, ADDRESS(to)));
            T(send(fd, "x", 1, 0));
            T(close(fd));
            T(close(own_one));
            NEED(write(done[1], "d", 1) == 1);
            _exit(0);
        }
    }
    T(connect(fd, ADDRESS(to)));
    tell("accept L A");
    char byte;
    for (int i = 0; i < 3; i++) {
        NEED(write(begin[1], "b", 1) == 1);
        NEED(read(done[0], &byte, 1) == 1);
        tell("accept L B");
        tell("drain B");
    }
    tell("read A 3");
    T(close(fd));
    tell("drain A");
    for (int i = 0; i < 3; i++) NEED(wait(NULL) > 0);
}

CASE(dup_in_every_way) {
    int fd = accepted("A");
    T(dup(fd));
    T(dup2(fd, 20));
    T(dup3(fd, 21, O_CLOEXEC));
    T(fcntl(21, F_GETFD));
    T(fcntl(fd, F_DUPFD, 30));
    T(fcntl(fd, F_DUPFD_CLOEXEC, 30));
    T(fcntl(31, F_GETFD));
    T(dup2(fd, fd));
    T(dup3(fd, fd, 0));
    T(dup2(900, fd));
    T(dup2(fd, 2000000000));
    T(dup(900));
    T(fcntl(20, F_SETFL, O_NONBLOCK));
    T((fcntl(31, F_GETFL) & O_NONBLOCK) != 0);
    T(fcntl(20, F_SETFD, FD_CLOEXEC));
    T(fcntl(fd, F_GETFD));
    T(send(31, "a", 1, 0));
    T(close(fd));
    T(write(30, "b", 1));
    T(close_range(3, 25, 0));
    T(send(20, "x", 1, 0));
    T(send(30, "c", 1, 0));
    tell("read A 3");
    T(close(30));
    T(close(31));
    tell("drain A");
}

CASE(dup2_over_sockets) {
    int a = accepted("A"), b = accepted("B"), null = open("/dev/null", O_RDWR);
    T(dup2(null, a));
    tell("drain A");
    T(write(a, "to nothing", 10));
    T(dup2(b, a));
    T(send(a, "b", 1, 0));
    tell("read B 1");
    T(dup2(b, 0));
    T(close(b));
    T(write(0, "c", 1));
    tell("read B 1");
}

CASE(close_ranges) {
    int a = accepted("A"), b = accepted("B"), c = listener();
    T(close_range(b, a, 0));
    T(close_range(a, b, CLOSE_RANGE_CLOEXEC));
    T(fcntl(a, F_GETFD) + fcntl(b, F_GETFD));
    T(close_range(a, a, 0));
    tell("drain A");
    T(send(b, "x", 1, 0));
    T(close_range(c, c, 77));
    T(close_range(3, 600, CLOSE_RANGE_UNSHARE));
    tell("drain B");
    T(fcntl(c, F_GETFD));
    T(socket(family, SOCK_STREAM, 0));
}

CASE(child_inherits) {
    int fd = accepted("A");
    pid_t child = fork();
    if (child == 0) {
        char bytes[4];
        T(recv(fd, bytes, 3, MSG_WAITALL));
        T(send(fd, "from the child", 14, 0));
        _exit(0);
    }
    tell("send A abc");
    wait_for(child);
    T(send(fd, "+", 1, 0));
    tell("read A 15");
    child = fork();
    if (child == 0) {
        T(shutdown(fd, SHUT_WR));
        _exit(0);
    }
    wait_for(child);
    T(send(fd, "x", 1, MSG_NOSIGNAL));
    tell("drain A");
}

CASE(last_holder_closes) {
    int fd = accepted("A"), ends[2];
    T(pipe(ends));
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(ends[1]);
        read(ends[0], &byte, 1);
        _exit(0);
    }
    T(close(fd));
    tell("send A still");
    T(close(ends[1]));
    wait_for(child);
    tell("drain A");
}

CASE(children_accept) {
    int fd = listener(), ready[2];
    T(pipe(ready));
    for (int i = 0; i < 3; i++)
        if (fork() == 0) {
            write(ready[1], "r", 1);
            int new = accept(fd, NULL, NULL);
            char byte;
            read(new, &byte, 1);
            write(new, "ok", 2);
            _exit(0);
        }
    char bytes[3];
    for (int i = 0; i < 3; i++) NEED(read(ready[0], bytes, 1) == 1);
    for (int i = 0; i < 3; i++) {
        tell("connect %c %s %d", 'A' + i, own, port_of(fd));
        tell("send %c x", 'A' + i);
        tell("drain %c", 'A' + i);
    }
    for (int i = 0; i < 3; i++) NEED(wait(NULL) > 0);
}

static atomic_int talk_is_over, talks_lost;

/* Tells itself something by fresh sockets, again and again. */
static void *talks(void *ignored) {
    while (!talk_is_over) {
        char byte;
        struct name to = name_of(own, 0);
        int from = socket(family, SOCK_DGRAM, 0), at = socket(family, SOCK_DGRAM, 0);
        NEED(bind(at, ADDRESS(to)) == 0);
        to = name_of(own, port_of(at));
        NEED(connect(from, ADDRESS(to)) == 0);
        struct pollfd event = {.fd = at, .events = POLLIN};
        if (send(from, "x", 1, 0) != 1 || poll(&event, 1, SOON_MS) != 1 || recv(at, &byte, 1, MSG_DONTWAIT) != 1)
            talks_lost++;
        close(from);
        close(at);
    }
    return ignored;
}

/* What a child closes it holds beside its parent, whatever other threads opened while it was made. */
CASE(children_begin_while_threads_open_sockets) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) NEED(pthread_create(&threads[i], NULL, talks, NULL) == 0);
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();
        if (child == 0) {
            close_range(3, ~0u, 0);
            _exit(0);
        }
        NEED(waitpid(child, NULL, 0) == child);
    }
    talk_is_over = 1;
    for (int i = 0; i < 4; i++) NEED(pthread_join(threads[i], NULL) == 0);
    out("lost %d", talks_lost);
}

CASE(epoll_across_fork) {
    int set = T(epoll_create1(0)), fd = accepted("A");
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 7};
    T(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    pid_t child = fork();
    if (child == 0) {
        T(epoll_wait(set, &event, 1, SOON_MS));
        T(event.data.u32);
        _exit(0);
    }
    tell("send A abc");
    wait_for(child);
    T(epoll_wait(set, &event, 1, SOON_MS));
}

CASE(exit_with_unsent_data) {
    /* More than the other host takes before it reads: the rest is sent when the program is gone. */
    char port[16], *arguments[] = {(char *)program, "started", "upload-0", NULL};
    snprintf(port, sizeof port, "%s", tell("listen L"));
    setenv("PORT", port, 1);
    setenv("PEER", peer, 1);
    pid_t child;
    T(posix_spawn(&child, program, NULL, NULL, arguments, environ));
    wait_for(child);
    tell("accept L A");
    tell("drain A");
}

CASE(exec_keeps_sockets) {
    int fd = accepted("A");
    T(fd);
    pid_t child = fork();
    if (child == 0) execute("say-4");
    wait_for(child);
    child = fork();
    if (child == 0) {
        dup2(fd, 5);
        execute("again-5");
    }
    wait_for(child);
    T(close(fd));
    tell("drain A");
}

CASE(exec_closes_what_says_so) {
    int fd = accepted("A");
    T(fcntl(fd, F_SETFD, FD_CLOEXEC));
    pid_t child = fork();
    if (child == 0) execute("closed-4");
    wait_for(child);
    T(send(fd, "here", 4, 0));
    T(close(fd));
    tell("drain A");
}

CASE(exec_in_place) {
    int fd = accepted("A");
    T(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    nonblock(fd);
    T(send(fd, "before", 6, 0));
    tell("send A between");
    tell("shut A");
    T(await(fd, POLLRDHUP) & POLLRDHUP);
    char role[16];
    snprintf(role, sizeof role, "state-%d", fd);
    if (fork() == 0) {
        /* Closed in the new program, and nobody else has it. */
        execute(role);
    }
    T(close(fd));
    tell("drain A");
    NEED(wait(NULL) > 0);
}

static void put_number(const char *name, int number) {
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

CASE(epoll_across_exec) {
    int port = atoi(tell("listen L")), fd = accepted("A"), once = accepted("B");
    int set = HIGH - 90, around = set + 1, ends[2], twice = set + 4;
    NEED(dup2(epoll_create1(EPOLL_CLOEXEC), set) == set && dup2(epoll_create1(0), around) == around);
    NEED(pipe(ends) == 0 && dup2(ends[0], set + 3) >= 0 && dup2(ends[1], set + 2) >= 0 && dup2(fd, twice) == twice);
    int new = T(socket(family, SOCK_STREAM, 0));
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 0};
    T(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    event.data.u32 = 1;
    T(epoll_ctl(set, EPOLL_CTL_ADD, twice, &event));
    event.data.u32 = 2;
    T(epoll_ctl(set, EPOLL_CTL_ADD, set + 3, &event));
    event = (struct epoll_event){.events = EPOLLIN | EPOLLONESHOT, .data.u32 = 3};
    T(epoll_ctl(set, EPOLL_CTL_ADD, once, &event));
    tell("send B once");
    T(epoll_wait(set, &event, 1, SOON_MS));
    out("%x %u", event.events, event.data.u32);
    event = (struct epoll_event){.events = EPOLLOUT, .data.u32 = 4};
    T(epoll_ctl(set, EPOLL_CTL_ADD, new, &event));
    event = (struct epoll_event){.events = EPOLLIN, .data.u32 = 77};
    T(epoll_ctl(around, EPOLL_CTL_ADD, set, &event));
    put_number("ONCE", once);
    put_number("NEW", new);
    put_number("PORT", port);
    setenv("PEER", peer, 1);
    char role[16];
    snprintf(role, sizeof role, "waits-%d", set);
    pid_t child = fork();
    if (child == 0) execute(role);
    tell("send A abc");
    wait_for(child);
    /* Here they are as they were. */
    T(epoll_wait(set, &event, 1, SOON_MS) > 0);
}

CASE(failed_exec_changes_nothing) {
    int fd = accepted("A");
    T(execl("/nonexistent/program", "program", NULL));
    T(send(fd, "x", 1, 0));
    tell("read A 1");
    T(execv("/tmp", (char *[]){"tmp", NULL}));
    T(close(fd));
    tell("drain A");
    T(dup(2));
}

CASE(servers_hand_over) {
    /* As nginx exchanges its program: the listening socket goes on in the new one. */
    int fd = listener(), port = port_of(fd);
    pid_t child = fork();
    if (child == 0) {
        char role[16];
        snprintf(role, sizeof role, "serve-%d", fd);
        char *arguments[] = {(char *)program, "started", role, NULL}, *environment[] = {"NGINX=4;", NULL};
        execve(program, arguments, environment);
        _exit(6);
    }
    tell("connect A %s %d", own, port);
    tell("send A abc");
    tell("read A 3");
    wait_for(child);
    T(close(fd));
    tell("connect B %s %d", own, port);
    out("%s", answer);
}

CASE(inetd) {
    int fd = listener();
    tell("connect A %s %d", own, port_of(fd));
    int new = T(accept4(fd, NULL, NULL, SOCK_CLOEXEC));
    pid_t child = vfork();
    if (child == 0) {
        dup2(new, 0);
        dup2(new, 9);
        execl(program, program, "started", "inetd-9", NULL);
        _exit(6);
    }
    T(close(new));
    tell("send A question");
    tell("drain A");
    wait_for(child);
}

CASE(spawned) {
    int fd = accepted("A"), cloexec = accepted("B");
    T(fcntl(cloexec, F_SETFD, FD_CLOEXEC));
    pid_t child = -1;
    char role[16];
    snprintf(role, sizeof role, "say-%d", fd);
    char *arguments[] = {(char *)program, "started", role, NULL};
    T(posix_spawn(&child, program, NULL, NULL, arguments, environ));
    wait_for(child);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    T(posix_spawn_file_actions_adddup2(&actions, cloexec, 9));
    T(posix_spawn_file_actions_addclose(&actions, fd));
    char *nine[] = {(char *)program, "started", "say-9", NULL};
    T(posix_spawnp(&child, program, &actions, NULL, nine, environ));
    wait_for(child);
    snprintf(role, sizeof role, "closed-%d", fd);
    T(posix_spawn(&child, program, &actions, NULL, arguments, environ));
    wait_for(child);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawn_file_actions_init(&actions);
    T(posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_RDONLY, 0));
    T(posix_spawn_file_actions_adddup2(&actions, cloexec, cloexec));
    snprintf(role, sizeof role, "say-%d", cloexec);
    T(posix_spawn(&child, program, &actions, NULL, arguments, environ));
    wait_for(child);
    posix_spawn_file_actions_destroy(&actions);
    T(posix_spawn(&child, "/nonexistent/program", NULL, NULL, arguments, environ));
    T(system("exit 3") >> 8);
    /* All but some are closed, and the program finds its sockets all the same. */
    posix_spawn_file_actions_init(&actions);
    T(posix_spawn_file_actions_adddup2(&actions, cloexec, 1));
    T(posix_spawn_file_actions_addclosefrom_np(&actions, 3));
    T(posix_spawn_file_actions_adddup2(&actions, 1, 4));
    T(posix_spawn_file_actions_adddup2(&actions, 2, 1));
    T(posix_spawn_file_actions_addopen(&actions, 6, "/dev/null", O_RDONLY, 0));
    T(posix_spawn_file_actions_addchdir_np(&actions, "/"));
    char *few[] = {(char *)program, "started", "few-4", NULL};
    NEED(dup2(1, 2) == 2);
    T(posix_spawn(&child, program, &actions, NULL, few, environ));
    wait_for(child);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawn_file_actions_init(&actions);
    T(posix_spawn_file_actions_addclosefrom_np(&actions, fd + 1));
    snprintf(role, sizeof role, "say-%d", fd);
    T(posix_spawn(&child, program, &actions, NULL, arguments, environ));
    wait_for(child);
    T(posix_spawn_file_actions_addclosefrom_np(&actions, 3));
    snprintf(role, sizeof role, "closed-%d", fd);
    T(posix_spawn(&child, program, &actions, NULL, arguments, environ));
    wait_for(child);
    posix_spawn_file_actions_destroy(&actions);
    T(close(fd));
    T(close(cloexec));
    tell("drain A");
    tell("drain B");
}

CASE(passed_to_a_child) {
    int ends[2];
    T(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    pid_t child = fork();
    if (child == 0) {
        int new = T(take(ends[1], MSG_CMSG_CLOEXEC));
        T(fcntl(new, F_GETFD));
        char bytes[4];
        T(recv(new, bytes, 3, MSG_WAITALL));
        T(send(new, "from there", 10, 0));
        T(close(new));
        int listening = T(take(ends[1], 0));
        int more = T(accept(listening, NULL, NULL));
        T(send(more, "accepted there", 14, 0));
        T(close(more));
        T(close(listening));
        _exit(0);
    }
    int fd = accepted("A"), listening = listener();
    T(pass(ends[0], fd));
    T(close(fd));
    tell("send A abc");
    tell("drain A");
    int port = port_of(listening);
    T(pass(ends[0], listening));
    T(close(listening));
    tell("connect B %s %d", own, port);
    tell("drain B");
    wait_for(child);
    tell("connect C %s %d", own, port);
    out("%s", answer);
}

CASE(passed_to_itself) {
    int ends[2], fd = accepted("A");
    T(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    T(pass(ends[0], fd));
    T(close(fd));
    int new = T(take(ends[1], 0));
    T(send(new, "x", 1, 0));
    tell("read A 1");
    T(pass(ends[0], new));
    T(pass(ends[0], 0));
    T(pass(ends[0], 900));
    T(close(take(ends[1], 0)));
    T(close(take(ends[1], 0)));
    T(close(new));
    tell("drain A");
}

CASE(passed_with_other_messages) {
    int ends[2], fds[2] = {accepted("A"), accepted("B")}, came[2];
    T(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    char space[2][CMSG_SPACE(sizeof(int))] = {0}, bytes[2] = "xy";
    struct iovec parts[2];
    struct mmsghdr messages[2] = {0};
    for (int i = 0; i < 2; i++) {
        parts[i] = (struct iovec){bytes + i, 1};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = parts + i, .msg_iovlen = 1, .msg_control = space[i],
                                              .msg_controllen = sizeof space[i]};
        struct cmsghdr *head = CMSG_FIRSTHDR(&messages[i].msg_hdr);
        *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(head), fds + i, sizeof(int));
    }
    T(sendmmsg(ends[0], messages, 2, 0));
    out("%d %d", messages[0].msg_len, messages[1].msg_len);
    T(close(fds[0]));
    T(close(fds[1]));
    T(recvmmsg(ends[1], messages, 2, 0, NULL));
    for (int i = 0; i < 2; i++) {
        memcpy(came + i, CMSG_DATA(CMSG_FIRSTHDR(&messages[i].msg_hdr)), sizeof(int));
        T(send(came[i], "x", 1, MSG_NOSIGNAL));
    }
    tell("read A 1");
    tell("read B 1");
}

#ifndef INLINE_H /* of an instruction the C library knows nothing */
static int passed_by[2];
static void *pass_until_full(void *end) {
    for (;;) pass(*(int *)end, passed_by[1]);
    return NULL;
}

/* Who is cancelled while it waits for room has not passed it once more. */
CASE(passed_by_a_cancelled_thread) {
    int ends[2];
    passed_by[1] = accepted("A");
    T(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, pass_until_full, &ends[0]) == 0);
    struct pollfd room = {ends[0], POLLOUT, 0};
    while (poll(&room, 1, 0) == 1) sched_yield();
    usleep(50000);
    NEED(pthread_cancel(thread) == 0);
    void *result;
    NEED(pthread_join(thread, &result) == 0);
    T(result == PTHREAD_CANCELED);
    T(close(passed_by[1]));
    NEED(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    for (int fd; (fd = take(ends[1], 0)) >= 0;) close(fd);
    tell("drain A");
}
#endif

/* What cannot be sent passes nothing. */
CASE(passed_beside_a_bad_vector) {
    int ends[2], fd = accepted("A");
    T(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    char space[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec parts[2] = {{"x", 1}, {(void *)8, 5}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    T(sendmsg(ends[0], &message, 0));
    message.msg_iov = (void *)8;
    T(sendmsg(ends[0], &message, 0));
    message.msg_iovlen = 2000;
    T(sendmsg(ends[0], &message, 0));
    message.msg_iov = parts;
    T(sendmsg(ends[0], &message, 0));
    T(recv(ends[1], space, sizeof space, MSG_DONTWAIT));
    T(write(fd, "still here", 10));
    tell("read A 10");
    T(close(fd));
    tell("drain A");
}

/* A program of its own: it has inherited no socket. */
CASE(passed_to_another_program) {
    int ends[2], fd = accepted("A"), listening = listener(), port = port_of(listening);
    int there = atoi(tell("bind D")), datagrams = socket(family, SOCK_DGRAM, 0);
    struct name to = name_of(peer, there);
    NEED(connect(datagrams, ADDRESS(to)) == 0 && set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1) == 0);
    T(set_option(fd, SOL_SOCKET, SO_MARK, 7));
    T(set_option(datagrams, SOL_SOCKET, SO_PRIORITY, 3));
    T(set_option(datagrams, IPPROTO_IP, IP_PKTINFO, 1));
    T(set_option(datagrams, IPPROTO_IP, IP_TTL, 40));
    T(set_option(datagrams, SOL_SOCKET, SO_TIMESTAMPNS, 1));
    nonblock(fd);
    tell("send A abc");
    NEED(await(fd, POLLIN) & POLLIN);
    for (int i = 0; i < 3; i++) {
        /* Those that were accepted before do not count. */
        tell("connect B %s %d", own, port);
        NEED(close(accept(listening, NULL, NULL)) == 0);
        tell("close B");
    }
    tell("connect B %s %d", own, port);
    tell("send B def");
    NEED(await(listening, POLLIN) & POLLIN);
    tell("sendto D %s %d waits", own, port_of(datagrams));
    NEED(await(datagrams, POLLIN) & POLLIN);
    T(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    pid_t child = fork();
    if (child == 0) {
        close(fd);
        close(listening);
        close(datagrams);
        fcntl(control, F_SETFD, FD_CLOEXEC);
        char role[16];
        snprintf(role, sizeof role, "receive-%d", ends[1]);
        execute(role);
    }
    T(pass(ends[0], fd));
    T(pass(ends[0], fd));
    T(close(fd));
    T(pass(ends[0], listening));
    T(pass(ends[0], datagrams));
    tell("read A 6");
    T(close(listening));
    T(close(datagrams));
    tell("drain B");
    tell("connect C %s %d", own, port);
    tell("send C ghi");
    tell("drain C");
    tell("recvfrom D");
    wait_for(child);
    tell("drain A");
    tell("connect E %s %d", own, port);
    out("%s", answer);
}

/* As node's cluster does that lets its workers accept by themselves. One of them may end, and another come for it. */
CASE(passed_to_several_programs) {
    int ends[4][2], listening = listener(), bound = socket(family, SOCK_STREAM, 0), datagrams = socket(family, SOCK_DGRAM, 0);
    struct name here = name_of(own, 0);
    NEED(bind(bound, ADDRESS(here)) == 0 && bind(datagrams, ADDRESS(here)) == 0);
    pid_t children[4];
    for (int i = 0; i < 4; i++) {
        NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends[i]) == 0);
        if (i == 3) {
            close(ends[0][0]);
            wait_for(children[0]);
        }
        if ((children[i] = fork()) == 0) {
            char role[16];
            close(listening);
            close(bound);
            close(datagrams);
            fcntl(control, F_SETFD, FD_CLOEXEC);
            fcntl(ends[i][1], F_SETFD, 0);
            snprintf(role, sizeof role, "worker-%d", ends[i][1]);
            execute(role);
        }
        close(ends[i][1]);
        char ready = 0;
        T(pass(ends[i][0], listening));
        T(pass(ends[i][0], bound));
        T(pass(ends[i][0], datagrams));
        T(read(ends[i][0], &ready, 1));
        for (int n = 0; n < 8; n++) {
            int port = port_of(n % 2 ? listening : bound);
            tell("connect A %s %d", own, port);
            tell("send A abc");
            tell("read A 3");
            tell("close A");
            tell("bind D");
            tell("sendto D %s %d datagram", own, port_of(datagrams));
            tell("recvfrom D");
            tell("close D");
        }
    }
    for (int i = 1; i < 4; i++) {
        close(ends[i][0]);
        wait_for(children[i]);
    }
    close(listening);
    close(bound);
    close(datagrams);
}

static int open_close_stop;
static void *open_and_close(void *unused) {
    (void)unused;
    while (!__atomic_load_n(&open_close_stop, __ATOMIC_RELAXED)) {
        int fd = socket(family, SOCK_STREAM, 0);
        struct name name = name_of(own, 0);
        if (fd >= 0 && bind(fd, ADDRESS(name)) == 0 && listen(fd, 1) == 0) close(dup(fd));
        close(fd);
    }
    return NULL;
}

CASE(fork_while_others_open_and_close) {
    int fd = accepted("A");
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, open_and_close, NULL);
    for (int i = 0; i < 40; i++) {
        pid_t child = fork();
        if (child == 0) {
            write(fd, "c", 1);
            _exit(0);
        }
        int status;
        NEED(waitpid(child, &status, 0) == child && status == 0);
    }
    open_close_stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    T(close(fd));
    tell("drain A");
}

static struct {
    int result;
    pid_t child;
} started_there = {-1, -1};

static void *spawns(void *nothing) {
    char *arguments[] = {"true", NULL};
    pthread_cancel(pthread_self());
    started_there.result = posix_spawnp(&started_there.child, "true", NULL, NULL, arguments, environ);
    pthread_testcancel();
    return nothing;
}

/* It is no place to be cancelled. */
CASE(spawn_in_a_cancelled_thread) {
    int fd = accepted("A");
    pthread_t thread;
    NEED(pthread_create(&thread, NULL, spawns, NULL) == 0);
    void *result;
    T(pthread_join(thread, &result));
    T(result == PTHREAD_CANCELED);
    T(started_there.result);
    wait_for(started_there.child);
    pid_t child = fork();
    if (child == 0) _exit(3);
    wait_for(child);
    T(close(fd));
    tell("drain A");
}

static volatile pid_t reading;
static void *read_twice(void *given) {
    int fd = *(int *)given;
    char byte;
    NEED(recv(fd, &byte, 1, 0) == 1);
    reading = gettid();
    T(recv(fd, &byte, 1, 0));
    return NULL;
}

/* What only a call of a thread still holds is no child's: it ends with the call. */
CASE(closed_while_a_thread_reads) {
    int fd = accepted("a");
    pthread_t reader;
    pthread_create(&reader, NULL, read_twice, &fd);
    tell("send a w");
    while (!reading) usleep(1000);
    await_sleep(reading);
    T(close(fd));
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    tell("send a x");
    pthread_join(reader, NULL);
    tell("read a 1");
    NEED(kill(child, SIGKILL) == 0);
    wait_for(child);
}

static void *poll_once(void *given) {
    struct pollfd one = {*(int *)given, POLLIN, 0};
    reading = gettid();
    T(poll(&one, 1, SOON_MS));
    out("%#x", one.revents);
    return NULL;
}

/* Who polls has the socket: it is woken by what comes, and finds that the number is closed. */
CASE(closed_while_a_thread_polls) {
    int fd = accepted("a");
    reading = 0;
    pthread_t poller;
    pthread_create(&poller, NULL, poll_once, &fd);
    while (!reading) usleep(1000);
    await_sleep(reading);
    T(close(fd));
    tell("send a x");
    pthread_join(poller, NULL);
    tell("drain a");
}

static pthread_barrier_t round_begins, round_ends;
static int written_to, odd_ends;

/* Writes until the number is closed: so it says, and nothing else. */
static void *write_until_closed(void *rounds) {
    for (int round = 0; round < *(int *)rounds; round++) {
        pthread_barrier_wait(&round_begins);
        while (write(written_to, "", 0) == 0) continue;
        odd_ends += errno != EBADF;
        pthread_barrier_wait(&round_ends);
    }
    return NULL;
}

CASE(closed_while_a_thread_writes) {
    int fd = accepted("a"), rounds = 250;
    pthread_t writer;
    signal(SIGPIPE, SIG_IGN);
    pthread_barrier_init(&round_begins, NULL, 2);
    pthread_barrier_init(&round_ends, NULL, 2);
    pthread_create(&writer, NULL, write_until_closed, &rounds);
    for (int round = 0; round < rounds; round++) {
        written_to = dup(fd);
        pthread_barrier_wait(&round_begins);
        for (volatile int pause = round % 1000; pause > 0; pause--) continue;
        NEED(close(written_to) == 0);
        pthread_barrier_wait(&round_ends);
    }
    pthread_join(writer, NULL);
    T(odd_ends);
    T(send(fd, "after", 5, 0));
    tell("drain a");
}

static atomic_long written;

/* Not more than a socket takes that nobody reads. */
static void *write_on(void *fd) {
    static char bytes[100];
    ssize_t got = 0;
    for (int i = 0; i < 300 && (got = write(*(int *)fd, bytes, sizeof bytes)) >= 0; i++) written += got;
    odd_ends += got < 0 && errno != EBADF;
    return NULL;
}

/* What a write says that it has written arrives, though the last descriptor is closed beside it; and it ends. */
CASE(closed_for_good_while_a_thread_writes) {
    int rounds = 60, lost = 0;
    signal(SIGPIPE, SIG_IGN);
    odd_ends = 0;
    for (int round = 0; round < rounds; round++) {
        pthread_t writer;
        int fd = accepted("a");
        written = 0;
        pthread_create(&writer, NULL, write_on, &fd);
        while (!written) continue;
        for (volatile int pause = round * 20; pause > 0; pause--) continue;
        NEED(close(fd) == 0);
        pthread_join(writer, NULL);
        lost += atol(order("drain a")) != written;
        tell("close a");
    }
    T(lost);
    T(odd_ends);
}

static void *receive_all(void *fd) {
    static char bytes[70000];
    out("received %zd", recv(*(int *)fd, bytes, sizeof bytes, MSG_WAITALL));
    return NULL;
}

/* Who waits for the rest of what it wants has it, whoever closes the number meanwhile. */
CASE(closed_while_a_thread_has_a_part) {
    pthread_t reader;
    int fd = accepted("a"), number = fd, left = 1;
    pthread_create(&reader, NULL, receive_all, &number);
    tell("fill a 5000");
    while (left) NEED(ioctl(fd, FIONREAD, &left) == 0);
    usleep(20000);
    NEED(close(fd) == 0);
    tell("fill a 65000");
    pthread_join(reader, NULL);
}

static void on_alarm(int number) { (void)number; }

/* A child is stopped in the midst of a look at what its parent reads, too: that waits for it no longer than for data. */
CASE(stopped_in_the_midst_of_a_call) {
    enum { ROUNDS = 12, MUCH = 60000 };
    static char much[MUCH];
    int fd = accepted("A"), begun[2], wrong = 0;
    struct timeval soon = {0, 200000}, never = {0, 0};
    struct itimerval often = {{0, 50000}, {0, 50000}}, no_more = {{0, 0}, {0, 0}};
    NEED(pipe(begun) == 0);
    tell("fill A %d", MUCH);
    for (int round = 0; round < ROUNDS; round++) {
        char byte;
        pid_t child = fork();
        if (child == 0) {
            NEED(write(begun[1], "b", 1) == 1);
            for (;;) recv(fd, much, MUCH, MSG_PEEK | MSG_DONTWAIT);
        }
        NEED(read(begun[0], &byte, 1) == 1);
        usleep(round * 137 % 1500);
        NEED(kill(child, SIGSTOP) == 0 && waitpid(child, NULL, WUNTRACED) == child);
        /* Who is late is ended by this. */
        signal(SIGALRM, SIG_DFL);
        alarm(10);
        wrong += recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 1 && errno != EAGAIN;
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
        wrong += recv(fd, &byte, 1, MSG_PEEK) != 1 && errno != EAGAIN;
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof never);
        struct sigaction action = {.sa_handler = on_alarm};
        NEED(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
        wrong += recv(fd, &byte, 1, MSG_PEEK) != 1 && errno != EINTR;
        setitimer(ITIMER_REAL, &no_more, NULL);
        signal(SIGALRM, SIG_DFL);
        alarm(10);
        /* It goes on, or dies: all is as before. */
        NEED(kill(child, round % 2 ? SIGCONT : SIGKILL) == 0);
        wrong += recv(fd, &byte, 1, MSG_PEEK) != 1;
        NEED(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
        alarm(0);
    }
    T(wrong);
    T(recv(fd, much, MUCH, MSG_WAITALL));
}
