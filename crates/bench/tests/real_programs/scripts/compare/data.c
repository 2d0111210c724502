/* Moving bytes: every call that reads or writes, with every flag. */
#include "compare.h"

static int started(const char *role) { return role == NULL; }

CASE(peek_waitall_trunc) {
    int fd = accepted("A");
    char bytes[64] = "";
    tell("send A abcdefgh");
    T(recv(fd, bytes, 3, MSG_PEEK));
    T(recv(fd, bytes, 8, MSG_PEEK | MSG_WAITALL));
    out("%.8s", bytes);
    T(recv(fd, NULL, 2, MSG_TRUNC));
    T(recv(fd, bytes, 6, MSG_WAITALL));
    out("%.6s", bytes);
    T(recv(fd, bytes, 1, MSG_DONTWAIT));
    T(recv(fd, bytes, 1, MSG_DONTWAIT | MSG_PEEK));
    T(recv(fd, bytes, 0, MSG_DONTWAIT));
    T(read(fd, bytes, 0));
    tell("send A xy");
    tell("shut A");
    T(recv(fd, bytes, 10, MSG_WAITALL));
    T(recv(fd, bytes, 10, MSG_WAITALL));
    T(recv(fd, bytes, 10, MSG_OOB));
}

CASE(send_flags) {
    int fd = accepted("A");
    T(send(fd, "ab", 2, MSG_MORE));
    T(send(fd, "cd", 2, MSG_DONTWAIT));
    tell("read A 4");
    T(send(fd, "ef", 2, MSG_CONFIRM | MSG_EOR));
    tell("read A 2");
    T(send(fd, "", 0, 0));
    T(send(fd, "gh", 2, MSG_ZEROCOPY));
    tell("read A 2");
    T(sendto(fd, "ij", 2, 0, NULL, 0));
    struct name name = name_of(PICK("10.1.2.3", "2001:db8:77::99"), 9);
    T(sendto(fd, "kl", 2, 0, ADDRESS(name)));
    tell("read A 4");
}

/* What waits for more goes after a while, also of a thread that makes no call again. */
CASE(more_that_does_not_follow) {
    int fd = accepted("A");
    T(send(fd, "ab", 2, MSG_MORE));
    busy_ms(700);
    tell("soon A 8");
    T(set_option(fd, IPPROTO_TCP, TCP_CORK, 1));
    T(write(fd, "cd", 2));
    busy_ms(700);
    tell("soon A 8");
}

CASE(vectors) {
    int fd = accepted("A");
    char one[4] = "", two[4] = "", three[8] = "";
    struct iovec out_[3] = {{"abc", 3}, {NULL, 0}, {"defgh", 5}}, in[3] = {{one, 3}, {two, 3}, {three, 8}};
    T(writev(fd, out_, 3));
    tell("read A 8");
    tell("send A 12345678");
    T(await(fd, POLLIN));
    T(readv(fd, in, 3));
    out("%s %s %s", one, two, three);
    T(writev(fd, out_, 0));
    T(writev(fd, out_, -1));
    T(readv(fd, in, IOV_MAX + 1));
    struct msghdr message = {.msg_iov = out_, .msg_iovlen = 3};
    T(sendmsg(fd, &message, 0));
    tell("read A 8");
    tell("send A abcd");
    T(await(fd, POLLIN));
    struct name name = {0};
    char control_data[64];
    message = (struct msghdr){.msg_name = &name, .msg_namelen = sizeof name, .msg_iov = in, .msg_iovlen = 2,
                              .msg_control = control_data, .msg_controllen = sizeof control_data};
    T(recvmsg(fd, &message, 0));
    out("flags %x, name %d, control %d", message.msg_flags, message.msg_namelen, (int)message.msg_controllen);
    T(preadv(fd, in, 1, 0));
    T(pwrite(fd, "x", 1, 0));
    T(lseek(fd, 0, SEEK_CUR));
}

CASE(recvfrom_of_a_stream) {
    int fd = accepted("A");
    char bytes[8];
    struct name name = {0};
    socklen_t len = sizeof name;
    tell("send A abc");
    T(await(fd, POLLIN));
    T(recvfrom(fd, bytes, 8, 0, (struct sockaddr *)&name, &len));
    out("length %d", len);
}

CASE(mmsg_of_a_stream) {
    int fd = accepted("A");
    struct iovec parts[2] = {{"abc", 3}, {"def", 3}};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &parts[0], .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = &parts[1], .msg_iovlen = 1}}};
    T(sendmmsg(fd, messages, 2, 0));
    out("%u %u", messages[0].msg_len, messages[1].msg_len);
    tell("read A 6");
    tell("send A xyz");
    T(await(fd, POLLIN));
    char one[4] = "", two[4] = "";
    parts[0] = (struct iovec){one, 2}, parts[1] = (struct iovec){two, 2};
    T(recvmmsg(fd, messages, 2, 0, NULL));
    out("%s %s", one, two);
    T(recvmmsg(fd, messages, 2, MSG_DONTWAIT, NULL));
}

CASE(null_pointers) {
    int fd = accepted("A");
    socklen_t len = 4;
    T(send(fd, NULL, 4, 0));
    T(write(fd, NULL, 4));
    T(recv(fd, NULL, 4, MSG_DONTWAIT));
    tell("send A abcd");
    T(await(fd, POLLIN));
    T(recv(fd, NULL, 4, 0));
    char bytes[8] = "";
    T(recv(fd, bytes, 4, 0));
    T(sendmsg(fd, NULL, 0));
    T(recvmsg(fd, NULL, 0));
    T(getsockopt(fd, SOL_SOCKET, SO_ERROR, NULL, &len));
    T(getsockopt(fd, SOL_SOCKET, SO_ERROR, &len, NULL));
    T(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, NULL, 4));
    T(getsockname(fd, NULL, &len));
    T(getpeername(fd, NULL, NULL));
    struct iovec part = {NULL, 3};
    T(writev(fd, &part, 1));
    T(readv(fd, NULL, 1));
}

CASE(wild_pointers) {
    int fd = accepted("A");
    char *hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (child == 0) {
        send(fd, hole, 4, 0);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    T(status);
}

/* What no program can have is an error, and nothing is sent of it or lost. */
CASE(pointers_to_nowhere) {
    int fd = accepted("A"), set = epoll_create1(0), datagrams = socket(family, SOCK_DGRAM, 0);
    void *nowhere = (void *)8, *far = (void *)-4096;
    socklen_t len = 16;
    struct epoll_event event = {.events = EPOLLIN};
    struct name to = name_of(peer, atoi(tell("bind D")));
    T(send(fd, nowhere, 4, 0));
    T(send(fd, far, 4, 0));
    T(write(fd, nowhere, 4));
    T(connect(datagrams, ADDRESS(to)));
    T(send(datagrams, nowhere, 4, 0));
    tell("send A abcd");
    T(await(fd, POLLIN));
    T(recv(fd, nowhere, 4, 0));
    T(recvmsg(fd, nowhere, 0));
    T(sendmsg(fd, nowhere, 0));
    T(readv(fd, nowhere, 1));
    T(getsockopt(fd, SOL_SOCKET, SO_ERROR, nowhere, &len));
    T(getsockopt(fd, SOL_SOCKET, SO_ERROR, &len, nowhere));
    T(setsockopt(fd, SOL_SOCKET, SO_LINGER, nowhere, 8));
    T(getsockname(fd, nowhere, &len));
    T(getpeername(fd, (struct sockaddr *)&to, nowhere));
    T(bind(socket(family, SOCK_STREAM, 0), nowhere, 16));
    T(connect(socket(family, SOCK_STREAM, 0), nowhere, 16));
    T(connect(datagrams, nowhere, 16));
    T(sendto(datagrams, "x", 1, 0, nowhere, 16));
    T(poll(nowhere, 1, 0));
    T(epoll_ctl(set, EPOLL_CTL_ADD, fd, nowhere));
    T(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    T(epoll_wait(set, nowhere, 1, 0));
    T(epoll_wait(set, NULL, 1, 0));
    char bytes[8] = "";
    T(recv(fd, bytes, 4, 0));
    T(epoll_wait(set, NULL, 1, 0));
}

CASE(lengths_beyond_all_memory) {
    int fd = accepted("A"), listening = listener();
    static char bytes[8];
    static struct iovec parts[IOV_MAX + 1];
    struct iovec below_zero = {bytes, -1}, two[2] = {{bytes, 4}, {bytes, SSIZE_MAX + 1ul}};
    nonblock(fd);
    T(writev(fd, &below_zero, 1));
    T(readv(fd, &below_zero, 1));
    T(writev(fd, two, 2));
    T(write(fd, bytes, -1));
    T(read(fd, bytes, -1));
    struct msghdr message = {.msg_iov = &below_zero, .msg_iovlen = 1};
    T(sendmsg(fd, &message, 0));
    T(recvmsg(fd, &message, 0));
    message = (struct msghdr){.msg_iov = parts, .msg_iovlen = IOV_MAX + 1};
    T(sendmsg(fd, &message, 0));
    T(recvmsg(fd, &message, 0));
    tell("connect B %s %d", own, port_of(listening));
    char name[256] = "";
    socklen_t len = -1;
    T(await(listening, POLLIN));
    T(accept(listening, (struct sockaddr *)name, &len));
    T(getsockname(fd, (struct sockaddr *)name, &len));
    T(getpeername(fd, (struct sockaddr *)name, &len));
    tell("send A ab");
    T(await(fd, POLLIN));
    T(recvfrom(fd, bytes, 2, 0, (struct sockaddr *)name, &len));
    struct name there = name_of(peer, atoi(peer_port)), here = name_of(own, 0);
    memcpy(name, &here, sizeof here);
    T(bind(socket(family, SOCK_STREAM, 0), (struct sockaddr *)name, 200));
    memcpy(name, &there, sizeof there);
    T(connect(socket(family, SOCK_STREAM, 0), (struct sockaddr *)name, 200));
    int datagrams = socket(family, SOCK_DGRAM, 0);
    T(bind(datagrams, ADDRESS(here)));
    T(sendto(datagrams, "x", 1, 0, (struct sockaddr *)name, 200));
    T(connect(datagrams, (struct sockaddr *)name, 200));
    T(bind(datagrams, (struct sockaddr *)name, 200));
}

CASE(files_to_sockets) {
    int fd = accepted("A"), file = memfd_create("file", 0);
    T(ftruncate(file, 100000));
    off_t at = 10;
    T(sendfile(fd, file, &at, 1000));
    out("at %ld", (long)at);
    tell("read A 1000");
    T(sendfile(fd, file, NULL, 60000) + sendfile(fd, file, NULL, 90000));
    T(lseek(file, 0, SEEK_CUR));
    T(sendfile(fd, file, NULL, 10));
    tell("read A 100000");
    T(sendfile(fd, fd, NULL, 10));
    T(sendfile(file, fd, NULL, 10));
    T(sendfile(fd, 900, NULL, 10));
    at = -1;
    T(sendfile(fd, file, &at, 10));
    // Others shall not wait for a pipe.
    int ends[2];
    T(pipe(ends));
    T(sendfile(fd, ends[0], NULL, 10));
    T(write(ends[1], "through", 7));
    T(sendfile(fd, ends[0], NULL, 10));
}

/* What is wrong with the file is said before what is wrong with the socket. */
CASE(files_that_cannot_be_sent) {
    int fd = accepted("A"), file = memfd_create("file", 0);
    int writes = open("/dev/null", O_WRONLY), null = open("/dev/null", O_RDONLY), directory = open("/", O_RDONLY);
    T(ftruncate(file, 1000));
    for (int round = 0; round < 2; round++) {
        off_t at = 2000;
        T(sendfile(fd, writes, NULL, 10));
        T(sendfile(fd, null, NULL, 10));
        T(sendfile(fd, directory, NULL, 10));
        T(sendfile(fd, 900, NULL, 10));
        T(sendfile(fd, file, &at, 10));
        T(sendfile(fd, file, NULL, -1));
        if (round == 0) T(shutdown(fd, SHUT_WR));
    }
    signal(SIGPIPE, SIG_IGN);
    T(sendfile(fd, file, NULL, 10));
}

/* Files that say they are empty, or that cannot be mapped. */
CASE(files_without_a_size) {
    int fd = accepted("A"), table = open("/proc/version", O_RDONLY);
    long sent = sendfile(fd, table, NULL, 13);
    out("sendfile of /proc/version = %ld", sent);
    tell("read A 13");
    off_t at = 6;
    T(sendfile(fd, table, &at, 7));
    tell("read A 7");
    T(at);
    T(lseek(table, 0, SEEK_CUR));
}

CASE(pipes_and_sockets) {
    int fd = accepted("A"), ends[2];
    T(pipe(ends));
    T(write(ends[1], "through", 7));
    T(splice(ends[0], NULL, fd, NULL, 100, 0));
    tell("read A 7");
    tell("send A backwards");
    T(await(fd, POLLIN));
    T(splice(fd, NULL, ends[1], NULL, 100, 0));
    char bytes[16] = "";
    T(read(ends[0], bytes, 16));
    out("%s", bytes);
    nonblock(fd);
    T(splice(fd, NULL, ends[1], NULL, 100, 0));
    T(splice(fd, NULL, ends[1], NULL, 100, SPLICE_F_NONBLOCK));
    loff_t at = 0;
    T(splice(fd, &at, ends[1], NULL, 100, 0));
    T(splice(ends[0], NULL, fd, &at, 100, 0));
    T(splice(fd, NULL, fd, NULL, 100, 0));
    tell("shut A");
    T(await(fd, POLLRDHUP) & POLLRDHUP);
    T(splice(fd, NULL, ends[1], NULL, 100, 0));
    T(close(ends[0]));
    signal(SIGPIPE, SIG_IGN);
    tell("close A");
}

CASE(full_and_empty) {
    int fd = accepted("A");
    static char bytes[1 << 16];
    nonblock(fd);
    long total = 0, n;
    int full;
    struct pollfd room = {fd, POLLOUT, 0};
    /* Until nothing moves any more: the peer takes some of it first. */
    do {
        while ((n = send(fd, bytes, sizeof bytes, 0)) > 0) total += n;
        full = errno;
    } while (poll(&room, 1, 500) > 0);
    out("full: %s", strerrorname_np(full));
    T(now_has(fd, POLLIN | POLLOUT));
    char command[64];
    snprintf(command, sizeof command, "read A %ld", total);
    /* How much fits differs. */
    send(control, command, strlen(command), 0);
    send(control, "\n", 1, 0);
    T(await(fd, POLLOUT));
    T(send(fd, "x", 1, 0));
}

CASE(timeouts) {
    int fd = accepted("A"), listening = listener();
    struct timeval short_ = {0, 50000}, got;
    socklen_t len = sizeof got;
    char byte;
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &short_, sizeof short_));
    T(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &got, &len));
    out("%ld s, length %d", (long)got.tv_sec, len);
    T(recv(fd, &byte, 1, 0));
    T(recv(fd, &byte, 1, MSG_WAITALL));
    T(recv(fd, &byte, 0, 0));
    T(recv(fd, &byte, 0, MSG_PEEK));
    T(recv(fd, &byte, 0, MSG_DONTWAIT));
    T(read(fd, &byte, 1));
    T(setsockopt(listening, SOL_SOCKET, SO_RCVTIMEO, &short_, sizeof short_));
    T(accept(listening, NULL, NULL));
    T(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &short_, sizeof short_));
    static char bytes[1 << 20];
    long n;
    while ((n = send(fd, bytes, sizeof bytes, 0)) > 0);
    out("full: %s", strerrorname_np(errno));
    struct timeval wrong = {0, 2000000};
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wrong, sizeof wrong));
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &short_, 4));
}

/* A stream takes no notice of an address, whatever the length. */
CASE(addresses_of_a_connection) {
    int fd = connected("A");
    static char large[100000];
    struct name to = name_of(peer, 9);
    struct iovec pieces[2] = {{large, 60000}, {large + 60000, 40000}};
    struct msghdr message = {.msg_name = &to, .msg_namelen = name_size(&to), .msg_iov = pieces, .msg_iovlen = 2};
    T(sendmsg(fd, &message, 0));
    tell("read A 100000");
    T(sendto(fd, large, sizeof large, 0, ADDRESS(to)));
    tell("read A 100000");
    message.msg_iovlen = 0;
    T(sendmsg(fd, &message, 0));
    /* No name is as long. */
    T(sendto(fd, "x", 1, 0, (void *)large, 200));
    T(sendto(fd, "x", 1, 0, (void *)8, 16));
    T(sendto(fd, "x", 1, 0, (void *)8, 0));
}

/* Data with the SYN, from who is not allowed to send it so: it is said, and an ordinary connection follows. */
CASE(fast_open_refused) {
    int port = atoi(tell("listen L")), fd = socket(family, SOCK_STREAM, 0);
    struct name to = name_of(peer, port);
    struct iovec piece = {"abc", 3};
    struct msghdr message = {.msg_name = &to, .msg_namelen = name_size(&to), .msg_iov = &piece, .msg_iovlen = 1};
    long result = sendto(fd, "abc", 3, MSG_FASTOPEN, ADDRESS(to));
    int refused = result < 0 && errno == EOPNOTSUPP;
    out("sent or refused %d", result == 3 || refused);
    out("again %d", sendmsg(fd, &message, MSG_FASTOPEN) == -1 && errno == (refused ? EOPNOTSUPP : EISCONN));
    int connects = connect(fd, ADDRESS(to)) == 0;
    out("connected %d", refused ? connects && send(fd, "abc", 3, 0) == 3 : !connects && errno == EISCONN);
    tell("accept L A");
    result = sendto(fd, "abc", 3, MSG_FASTOPEN, ADDRESS(to));
    out("and now %d", result == -1 && (errno == EISCONN || errno == EOPNOTSUPP));
    tell("read A 3");
}

static volatile int handled;
static void handle(int signal) { handled = signal; }
static void *interrupt(void *thread) {
    await_sleep(case_thread);
    pthread_kill(*(pthread_t *)thread, SIGUSR1);
    return NULL;
}

/* A look for more than comes ends with what is there. */
CASE(peeks_that_end_early) {
    int fd = accepted("A");
    char bytes[16];
    struct timeval short_ = {0, 200000};
    pthread_t self = pthread_self(), other;
    struct sigaction action = {.sa_handler = handle};
    NEED(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &short_, sizeof short_) && !sigaction(SIGUSR1, &action, NULL));
    T(recv(fd, bytes, 5, MSG_PEEK | MSG_WAITALL));
    tell("send A abc");
    T(await(fd, POLLIN));
    T(recv(fd, bytes, 5, MSG_PEEK | MSG_WAITALL));
    T(set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 10));
    T(recv(fd, bytes, 16, MSG_PEEK));
    T(set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 1));
    short_ = (struct timeval){0};
    NEED(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &short_, sizeof short_));
    NEED(!pthread_create(&other, NULL, interrupt, &self));
    T(recv(fd, bytes, 5, MSG_PEEK | MSG_WAITALL));
    NEED(!pthread_join(other, NULL));
    T(handled == SIGUSR1);
    T(recv(fd, bytes, 5, 0));
}

CASE(low_water) {
    int fd = accepted("A");
    T(option(fd, SOL_SOCKET, SO_RCVLOWAT));
    T(set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 4));
    T(option(fd, SOL_SOCKET, SO_RCVLOWAT));
    tell("send A abc");
    struct pollfd one = {fd, POLLIN, 0};
    T(poll(&one, 1, 100));
    tell("send A d");
    T(await(fd, POLLIN));
    char bytes[8];
    T(recv(fd, bytes, 8, 0));
    T(set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 0));
    T(option(fd, SOL_SOCKET, SO_RCVLOWAT));
}

/* More than the first buffer holds. */
CASE(a_large_low_water) {
    static const int marks[] = {50000, 200000, 400000};
    static char bytes[2 << 20];
    for (int i = 0; i < 3; i++) {
        char name[2] = {'A' + i}, line[64];
        int fd = accepted(name), there = 0;
        T(set_option(fd, SOL_SOCKET, SO_RCVLOWAT, marks[i]));
        T(option(fd, SOL_SOCKET, SO_RCVLOWAT));
        int len = snprintf(line, sizeof line, "fill %s 2000000\n", name);
        NEED(send(control, line, len, 0) == len);
        T(await(fd, POLLIN));
        T(ioctl(fd, FIONREAD, &there));
        out("%s", there >= marks[i] ? "so much is there" : "less is there");
        long got = recv(fd, bytes, sizeof bytes, 0);
        out("%s", got >= marks[i] ? "so much" : "less");
        T(set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 1));
        while (got < 2000000) {
            long more = recv(fd, bytes, sizeof bytes, 0);
            NEED(more > 0);
            got += more;
        }
        NEED(recv(control, answer, sizeof answer, 0) > 0);
    }
    int fd = accepted("Z");
    T(set_option(fd, SOL_SOCKET, SO_RCVLOWAT, -1));
    T(option(fd, SOL_SOCKET, SO_RCVLOWAT) > 1 << 20);
}

CASE(counts) {
    int fd = accepted("A"), listening = listener(), n = -1;
    T(ioctl(fd, FIONREAD, &n));
    out("%d", n);
    tell("send A abcde");
    T(await(fd, POLLIN));
    T(ioctl(fd, FIONREAD, &n));
    out("%d", n);
    T(ioctl(listening, FIONREAD, &n));
    T(ioctl(listening, TIOCOUTQ, &n));
    n = 1;
    T(ioctl(fd, FIONBIO, &n));
    T((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    n = 0;
    T(ioctl(fd, FIONBIO, &n));
    T(fcntl(fd, F_GETFL) & O_NONBLOCK);
    struct stat facts;
    T(fstat(fd, &facts));
    T(S_ISSOCK(facts.st_mode));
    T(fcntl(fd, F_GETFL) & O_ACCMODE);
}

CASE(datagrams) {
    int fd = T(socket(family, SOCK_DGRAM, 0));
    struct name name = name_of(own, 0), to = name_of(peer, atoi(tell("bind D"))), from;
    socklen_t len = sizeof from;
    char bytes[16] = "";
    T(bind(fd, ADDRESS(name)));
    T(sendto(fd, "hello", 5, 0, ADDRESS(to)));
    tell("recvfrom D");
    T(send(fd, "x", 1, 0));
    tell("sendto D %s %d longer", own, port_of(fd));
    T(await(fd, POLLIN));
    T(recvfrom(fd, bytes, 3, MSG_TRUNC | MSG_PEEK, (struct sockaddr *)&from, &len));
    struct iovec part = {bytes, 3};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    T(recvmsg(fd, &message, 0));
    out("flags %x", message.msg_flags);
    T(from.port == to.port);
    T(recv(fd, bytes, 3, MSG_DONTWAIT));
    T(connect(fd, ADDRESS(to)));
    T(send(fd, "again", 5, 0));
    tell("recvfrom D");
    T(send(fd, "", 0, 0));
    tell("recvfrom D");
    T(shutdown(fd, SHUT_RD));
    T(recv(fd, bytes, 3, 0));
    T(shutdown(fd, SHUT_WR));
    T(send(fd, "x", 1, MSG_NOSIGNAL));
    T(listen(fd, 1));
    T(accept(fd, NULL, NULL));
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    T(connect(fd, &none, sizeof none));
    T(getpeername(fd, (struct sockaddr *)&from, &len));
}

CASE(datagram_refused) {
    int port = atoi(tell("bind D"));
    tell("close D");
    int fd = T(socket(family, SOCK_DGRAM, 0));
    struct name to = name_of(peer, port);
    char byte;
    T(connect(fd, ADDRESS(to)));
    T(send(fd, "x", 1, 0));
    T(await(fd, POLLIN) & POLLERR);
    T(option(fd, SOL_SOCKET, SO_ERROR));
    T(send(fd, "x", 1, 0));
    T(await(fd, POLLIN) & POLLERR);
    T(recv(fd, &byte, 1, 0));
    T(recv(fd, &byte, 1, MSG_DONTWAIT));
    static char large[70000];
    T(send(fd, large, 65508, 0));
}

/* Behind a part of a message nothing goes. */
CASE(many_that_are_sent_in_part) {
    static char large[8 << 20];
    int fd = accepted("A");
    struct timeval soon = {0, 200000};
    T(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon));
    struct iovec parts[2] = {{large, sizeof large}, {"end", 3}};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = parts + 1, .msg_iovlen = 1}}};
    T(sendmmsg(fd, messages, 2, 0));
    out("a part: %d", messages[0].msg_len > 0 && messages[0].msg_len < sizeof large);
    struct linger at_once = {1, 0};
    T(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    T(close(fd));
}

/* No address is this host's, for who asks: as getsockname of a server says it. */
CASE(connects_to_no_address) {
    struct name any = name_of(PICK("0.0.0.0", "::"), 0);
    if (family == AF_INET6 && !over_inet6) any.in6.sin6_addr = (struct in6_addr){0};
    int fd = socket(family, SOCK_STREAM, 0);
    NEED(bind(fd, ADDRESS(any)) == 0 && listen(fd, 4) == 0);
    socklen_t len = sizeof any;
    NEED(getsockname(fd, (struct sockaddr *)&any, &len) == 0);
    int to = socket(family, SOCK_STREAM, 0);
    T(connect(to, ADDRESS(any)));
    int new = T(accept(fd, NULL, NULL));
    T(send(to, "asks", 4, 0));
    char bytes[8];
    T(recv(new, bytes, 8, 0));
    struct name name;
    len = sizeof name;
    T(getpeername(to, (struct sockaddr *)&name, &len));
    out("peer %s", host_of(&name));
    close(fd);
    int none = socket(family, SOCK_STREAM, 0);
    T(connect(none, ADDRESS(any)));
}

/* Into a pipe, and nowhere else. */
CASE(a_file_sent_from_a_connection) {
    int fd = accepted("A"), ends[2], file = memfd_create("file", 0);
    NEED(pipe2(ends, O_NONBLOCK) == 0);
    tell("send A abcdef");
    T(await(fd, POLLIN));
    off_t at = 0;
    T(sendfile(ends[1], fd, &at, 9));
    T(sendfile(ends[0], fd, NULL, 9));
    T(sendfile(file, fd, NULL, 9));
    T(sendfile(ends[1], fd, (off_t *)8, 9));
    T(sendfile(ends[1], fd, NULL, 0));
    T(sendfile(ends[1], fd, NULL, 4));
    T(sendfile(ends[1], fd, NULL, 9));
    T(sendfile(fd, file, (off_t *)8, 9));
    char bytes[9];
    T(read(ends[0], bytes, 9));
    nonblock(fd);
    T(sendfile(ends[1], fd, NULL, 9));
}

/* Who maps what has come is told how much he has to copy. */
CASE(what_is_not_mapped) {
    int fd = accepted("A");
    tell("send A abcdef");
    T(await(fd, POLLIN));
    struct tcp_zerocopy_receive asked = {0};
    socklen_t len = sizeof asked;
    T(getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &asked, &len));
    out("%u mapped, %u to be copied", asked.length, asked.recv_skip_hint);
    for (len = 15; len > 10; len -= 4) T(getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &asked, &len));
}
