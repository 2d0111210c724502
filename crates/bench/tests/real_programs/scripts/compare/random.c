/* Calls drawn at random, each printed with what it gave: a transcript is a function of the seed alone.
 *
 *     SCOUTLINE_RANDOM="FIRST COUNT CALLS"   the seeds, one a case, and how many calls each makes
 *     SCOUTLINE_RANDOM_ONLY="N,N,…"          of these calls only: to make a sequence short that shows a difference
 *
 * What a call does is drawn from its seed and its number, so that it stays the same when others are left out. A call
 * that would wait for ever is not made; should one wait nevertheless, a signal ends it after some seconds. What each
 * call has caused is over before the next one (`random.h`). Calls of which it is known that paths differ there, or
 * that the kernel itself is not of one mind, are in `is_left_out`.
 */
#include "random.h"
#include "random_options.h"

static int started(const char *role) { return role == NULL; }

static unsigned long long seed, drawn;
static int call_number, failed_with;
static long result;
static volatile sig_atomic_t pipes;
static unsigned char room[70000];

static unsigned draw(unsigned below) {
    /* SplitMix64. */
    unsigned long long z = drawn += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (z ^ z >> 31) % below;
}

#define ONE_OF(...)                                                                                                    \
    ({                                                                                                                 \
        const int of_[] = {__VA_ARGS__};                                                                               \
        of_[draw(sizeof of_ / sizeof *of_)];                                                                           \
    })

static void on_signal(int number) { pipes += number == SIGPIPE; }

/* Makes a call. */
#define MAKE(call)                                                                                                     \
    do {                                                                                                               \
        pipes = errno = 0;                                                                                             \
        alarm(6);                                                                                                      \
        result = (long)(call);                                                                                         \
        failed_with = result < 0 ? errno : 0;                                                                          \
        alarm(CASE_S);                                                                                                   \
    } while (0)

/* Prints the call that was made and what it gave. */
__attribute__((format(printf, 1, 2))) static void said(const char *format, ...) {
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    out("%d %s = %ld %s%s", call_number, text, result, failed_with ? strerrorname_np(failed_with) : "",
        pipes ? " SIGPIPE" : "");
}

static unsigned checksum(const unsigned char *bytes, long count) {
    unsigned crc = ~0u;
    for (long i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc;
}

static void fill(int start, int count) {
    for (int i = 0; i < count; i++) room[i] = (unsigned)(start + i) * 167 >> 3 & 255;
}

/* One of our sockets, if there is any: streams, datagram sockets, or either. */
enum kind { STREAM = 1, DATAGRAM = 2, EITHER = 3 };

static int pick(enum kind kind) {
    int from = draw(SLOTS);
    for (int i = 0; i < SLOTS; i++) {
        int slot = (from + i) % SLOTS;
        if (at[slot] && kind & (at[slot]->is_datagram ? DATAGRAM : STREAM)) return slot;
    }
    return -1;
}

/* One that would be worth a call that most are not, if there is any. */
static int pick_such(int (*is)(const struct endpoint *)) {
    int from = draw(SLOTS);
    for (int i = 0; i < SLOTS; i++) {
        int slot = (from + i) % SLOTS;
        if (at[slot] && is(at[slot])) return slot;
    }
    return -1;
}

static int is_connected(const struct endpoint *s) { return s->connection && !s->connection->is_reset; }
static int is_listening(const struct endpoint *s) { return s->is_listening; }
static int is_new(const struct endpoint *s) { return !s->is_datagram && !s->is_listening && !s->connection; }

static const char *flags_text(int flags) {
    static const struct {
        int flag;
        const char *name;
    } names[] = {{MSG_PEEK, "PEEK"}, {MSG_TRUNC, "TRUNC"}, {MSG_WAITALL, "WAITALL"}, {MSG_DONTWAIT, "DONTWAIT"},
                 {MSG_OOB, "OOB"}, {MSG_ERRQUEUE, "ERRQUEUE"}, {MSG_NOSIGNAL, "NOSIGNAL"}, {MSG_EOR, "EOR"},
                 {MSG_CONFIRM, "CONFIRM"}, {MSG_DONTROUTE, "DONTROUTE"}, {MSG_CTRUNC, "CTRUNC"}};
    static char text[128];
    int n = 0;
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (flags & names[i].flag) {
            n += snprintf(text + n, sizeof text - n, "%s%s", n ? "|" : "", names[i].name);
            flags &= ~names[i].flag;
        }
    if (flags || !n) snprintf(text + n, sizeof text - n, "%s%#x", n ? "|" : "", flags);
    return text;
}

static const char *name_text(struct endpoint *s, const struct name *name, socklen_t len) {
    static char text[128];
    int in6 = name->family == AF_INET6;
    if (len < (in6 ? sizeof name->in6 : sizeof name->in) || (!in6 && name->family != AF_INET))
        snprintf(text, sizeof text, "length %d, family %d", len, len > 1 ? name->family : 0);
    else
        snprintf(text, sizeof text, "%s port %s, length %d", host_of(name), port_text(s, ntohs(name->port)), len);
    return text;
}

/* Calls that are not made because paths differ there, and why. To widen the test, take one out. */
enum left_out { BIND, CLOSE, SHUTDOWN, ASK_UNSENT, ASK_THE_WAY, ASK_OWN_NAME, EDGES, APPEND };

static int is_left_out(enum left_out call, const struct endpoint *s) {
    const struct connection *c = s->connection;
    switch (call) {
    case BIND:
        /* A connection that is over can be bound on Linux, though never be connected then, and so can one whose failure
         * `connect` has not told of yet. */
        return (c && is_over(c)) || s->is_untold;
    case CLOSE:
        /* What has a socket before it is on paths is the kernel's epoll, by a descriptor that is gone then: it cannot be
         * taken out any more. */
        return s->is_watched && s->descriptors > 1 &&
               (s->is_datagram ? s->is_deaf : !c && !s->is_bound && !s->has_listened && !s->has_tried);
    case SHUTDOWN:
        /* Linux marks a stream without a connection as shut, though the call fails (differences.txt: `states
         * bound_socket`), and a datagram socket that is the kernel's yet stays so when it comes to be on paths. */
        return s->is_datagram ? s->is_deaf : !c && !s->is_listening;
    case ASK_UNSENT:
        /* Linux counts its SYN, and what else nobody will acknowledge (differences.txt: `looks streams_refused`). */
        return !s->is_datagram && (!c || is_over(c));
    case ASK_THE_WAY:
        /* What of a connection's way is told ends with it (README, Limits). */
        return !s->is_datagram && (c ? is_over(c) : s->has_tried);
    case ASK_OWN_NAME:
        /* Linux shows a port that the socket does not have any more. */
        return s->is_nowhere;
    case EDGES:
        /* On Linux a datagram that has left is an edge for who waits for room, though there was room. And what comes to
         * be on paths while an epoll has it gives its edge once more. */
        return s->is_datagram || (!c && !s->is_listening);
    case APPEND:
        /* O_APPEND says nothing of a socket, and is not kept. */
        return 1;
    }
    return 0;
}

static void make_socket(void) {
    if (free_slot() < 0) return;
    int is_datagram = draw(3) == 0, flags = draw(4) ? 0 : SOCK_NONBLOCK;
    int odd = draw(40) == 0;
    MAKE(socket(family, odd ? 77 : (is_datagram ? SOCK_DGRAM : SOCK_STREAM) | flags, 0));
    said("socket(%s%s)", odd ? "77" : is_datagram ? "datagrams" : "stream", flags ? ", nonblocking" : "");
    if (result >= 0) enter(result, is_datagram, flags != 0);
}

/* Ports of ours, whoever ran before: what others have left in TIME-WAIT would show. */
static int first_port(void) { return OUR_PORTS + getpid() % 2500 * PORTS_OF_A_SEED; }

/* Ports of ours that connections were accepted at: they keep it on the kernel (differences.txt: `states
 * bind_beside_what_was_accepted`). */
static int has_accepted[PORTS_OF_A_SEED];

static void call_bind(void) {
    int slot = pick(EITHER);
    if (slot < 0) return;
    struct endpoint *s = at[slot];
    int n = draw(PORTS_OF_A_SEED), port = draw(2) ? 0 : first_port() + n, kind = draw(12);
    if (is_left_out(BIND, s)) return;
    int odd = draw(40) == 0;
    if (port && has_accepted[n]) port = 0;
    /* Here ::ffff:0.0.0.0 is shown as ::. */
    if (family == AF_INET6 && !over_inet6 && kind >= 8 && kind < 11) kind = 0;
    const char *host = kind < 8 ? own : kind < 11 ? PICK("0.0.0.0", "::") : PICK("10.99.99.99", "2001:db8:99::99");
    struct name name = name_of(host, port);
    socklen_t len = draw(20) ? name_size(&name) : draw(sizeof name);
    if (odd) name.family = ONE_OF(AF_UNSPEC, AF_UNIX, 99);
    MAKE(bind(slots[slot], (struct sockaddr *)&name, len));
    said("bind(%d, %s port %s, family %d, length %d)", slots[slot], host, port ? port_text(s, port) : "0", name.family, len);
    if (result < 0) return;
    s->is_bound = 1;
    s->is_nowhere = 0;
    s->is_deaf = kind >= 8 && !port;
}

static void call_listen(void) {
    int slot = draw(3) ? pick_such(is_new) : pick(STREAM);
    if (slot < 0) return;
    int backlog = ONE_OF(4, 16, 128, -1, 1000000);
    MAKE(listen(slots[slot], backlog));
    said("listen(%d, %d)", slots[slot], backlog);
    if (result < 0) return;
    struct endpoint *s = at[slot];
    s->is_listening = s->has_listened = 1;
    s->is_nowhere = 0;
    s->is_shut = 0;
    /* There was one, which is over. */
    if (s->connection) left(s->connection, 1);
    s->connection = NULL;
}

static void connect_nowhere(int slot) {
    struct endpoint *s = at[slot];
    struct name name = {.family = AF_UNSPEC};
    socklen_t len = ONE_OF(sizeof name.in, sizeof name, 2, 16);
    MAKE(connect(slots[slot], (struct sockaddr *)&name, len));
    said("connect(%d, AF_UNSPEC, length %d)", slots[slot], len);
    if (result < 0) return;
    s->to = s->is_shut = 0;
    if (s->is_datagram) return;
    s->is_untold = 0;
    s->is_nowhere = 1;
    stop_listening(s);
    if (s->connection) left(s->connection, 1);
    s->connection = NULL;
}

static void call_connect(void) {
    int slot = draw(2) ? pick_such(is_new) : pick(EITHER);
    if (slot < 0) return;
    struct endpoint *s = at[slot];
    int closed = draw(5) == 0, nowhere = draw(6) == 0;
    if (nowhere) return connect_nowhere(slot);
    int port = closed ? CLOSED_PORT : s->is_datagram ? DATAGRAMS_PORT + (int)draw(THEIRS) : STREAMS_PORT;
    struct name name = name_of(peer, port);
    socklen_t len = name_size(&name);
    int short_name = draw(30) == 0, odd = draw(40) == 0;
    if (short_name) len = draw(sizeof name.in);
    if (odd) name.family = ONE_OF(AF_UNIX, 99);
    MAKE(connect(slots[slot], (struct sockaddr *)&name, len));
    said("connect(%d, port %d, family %d, length %d)", slots[slot], port, name.family, len);
    if (s->is_datagram) {
        if (result == 0) s->to = port, s->is_deaf = 0;
        return;
    }
    s->has_tried = 1;
    if (!s->connection && failed_with == ECONNREFUSED) s->is_untold = 0;
    if (s->connection && is_over(s->connection) && result < 0 && failed_with != EISCONN && failed_with != EINVAL) {
        /* It was over before this call could tell that it stands. */
        left(s->connection, 1);
        s->connection = NULL;
    }
    if (s->connection || (result < 0 && failed_with != EINPROGRESS)) return;
    if (failed_with == EINPROGRESS) out("  then events %#x", await(slots[slot], POLLOUT));
    if (closed) {
        s->is_untold = 1;
        return;
    }
    struct connection *c = s->connection = new_connection();
    c->owner = s;
    s->is_nowhere = 0;
    EXPECT("accept L c%d", c->id);
    have_their_end(c);
    settle(c);
}

static void call_accept(void) {
    int slot = pick_such(is_listening);
    if (slot < 0 || draw(10) == 0) slot = pick(EITHER);
    if (slot < 0 || free_slot() < 0) return;
    struct endpoint *s = at[slot];
    if (s->is_listening && !s->waiting && !s->is_nonblocking) return;
    struct name name = {.family = 0};
    socklen_t len = draw(8) ? sizeof name : draw(sizeof name);
    int flags = ONE_OF(0, 0, SOCK_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC, 1), with_name = draw(3);
    MAKE(accept4(slots[slot], with_name ? (struct sockaddr *)&name : NULL, with_name ? &len : NULL, flags));
    if (result < 0) return said("accept4(%d, %#x)", slots[slot], flags);
    struct endpoint *new = enter(result, 0, flags & SOCK_NONBLOCK);
    new->drawn_count = s->drawn_count;
    memcpy(new->drawn, s->drawn, sizeof s->drawn);
    struct connection *c = new->connection = s->queue[0];
    NEED(s->waiting);
    memmove(s->queue, s->queue + 1, --s->waiting * sizeof *s->queue);
    c->owner = new;
    new->lingers_not = s->lingers_not, new->low_water = s->low_water, new->peeks_behind = s->peeks_behind;
    said("accept4(%d, %#x)", slots[slot], flags);
    if (with_name) out("  %s", name_text(new, &name, len));
    settle(c);
}

/* Where a datagram went that was sent: who takes it, or what says that nobody does. */
static void sent_datagram(int slot, int port) {
    struct endpoint *s = at[slot];
    if (port >= DATAGRAMS_PORT && port < DATAGRAMS_PORT + THEIRS) {
        int from = atoi(ask("datagram U%d", port - DATAGRAMS_PORT));
        const char *rest = strchr(answer, ' ');
        if (!rest) out("  taken: %s", answer);
        else out("  taken from %s:%s", port_text(s, from), rest);
    } else {
        if (s->to == CLOSED_PORT || (!s->to && s->hears_errors)) await(slots[slot], 0);
        ask("nothing");
    }
    if (port) s->is_deaf = 0;
}

static void call_send(void) {
    int slot = draw(3) ? pick_such(is_connected) : pick(EITHER);
    if (slot < 0 && (slot = pick(EITHER)) < 0) return;
    struct endpoint *s = at[slot];
    int fd = slots[slot], count = ONE_OF(0, 1, 1, 2, 10, 100, 1000, 1400, 3000, 8000), how = draw(4);
    int flags = ONE_OF(0, 0, 0, MSG_NOSIGNAL, MSG_DONTWAIT, MSG_EOR, MSG_CONFIRM, MSG_DONTROUTE, MSG_OOB);
    int port = ONE_OF(0, 0, DATAGRAMS_PORT, DATAGRAMS_PORT + 1, CLOSED_PORT), parts = 1 + draw(3);
    int too_long = draw(20) == 0;
    if (s->is_datagram && too_long) count = 65500 + draw(20);
    if (s->connection && s->connection->there + count > MUCH) return;
    struct name name = name_of(peer, port);
    struct iovec pieces[3];
    fill(s->connection ? s->connection->said : call_number, count);
    for (int i = 0, from = 0; i < parts; i++) {
        int size = i == parts - 1 ? count - from : count / parts;
        pieces[i] = (struct iovec){room + from, size};
        from += size;
    }
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = parts};
    if (how == 0) {
        port = flags = 0;
        MAKE(write(fd, room, count));
        said("write(%d, %d)", fd, count);
    } else if (how == 1) {
        port = flags = 0;
        MAKE(writev(fd, pieces, parts));
        said("writev(%d, %d in %d)", fd, count, parts);
    } else if (how == 2) {
        MAKE(sendto(fd, room, count, flags, port ? (struct sockaddr *)&name : NULL, port ? name_size(&name) : 0));
        said("sendto(%d, %d, %s, port %d)", fd, count, flags_text(flags), port);
    } else {
        if (port) message.msg_name = &name, message.msg_namelen = name_size(&name);
        MAKE(sendmsg(fd, &message, flags));
        said("sendmsg(%d, %d in %d, %s, port %d)", fd, count, parts, flags_text(flags), port);
    }
    if (result < 0) return;
    if (s->is_datagram) sent_datagram(slot, port ? port : s->to);
    else if (result > 0) sent(s->connection, result);
}

/* Whether a call that receives comes back even if it is one that waits. */
static int comes_back(const struct endpoint *s, int count, int flags) {
    const struct connection *c = s->connection;
    if (s->is_nonblocking || flags & (MSG_DONTWAIT | MSG_ERRQUEUE)) return 1;
    if (s->is_datagram) return 0;
    if (!c) return !s->has_tried;
    if (c->they_shut || c->is_reset || s->is_shut) return 1;
    if (c->is_urgent || s->low_water > 1 || s->peeks_behind) return 0;
    return c->here > 0 && (!(flags & MSG_WAITALL) || c->here >= count);
}

static void show_message(struct endpoint *s, struct msghdr *message) {
    out("  %s, flags %s, %s", message->msg_namelen ? "name" : "no name", flags_text(message->msg_flags),
        message->msg_namelen ? name_text(s, message->msg_name, message->msg_namelen) : "");
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        int value = 0, is_time = c->cmsg_level == SOL_SOCKET;
        memcpy(&value, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0) < 4 ? c->cmsg_len - CMSG_LEN(0) : 4);
        int is_name = c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_ORIGDSTADDR;
        out("  beside it %d %d: %d bytes, %d", c->cmsg_level, c->cmsg_type, (int)c->cmsg_len,
            is_time || is_name || c->cmsg_type == IP_PKTINFO || c->cmsg_type == IPV6_PKTINFO ? 0 : value);
    }
}

static void call_receive(void) {
    int slot = draw(3) ? pick_such(is_connected) : pick(EITHER);
    if (slot < 0 && (slot = pick(EITHER)) < 0) return;
    struct endpoint *s = at[slot];
    int fd = slots[slot], count = ONE_OF(0, 1, 2, 10, 100, 1000, 3000, 20000), how = draw(5), parts = 1 + draw(3);
    int flags = ONE_OF(0, 0, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, MSG_OOB, MSG_ERRQUEUE, MSG_PEEK | MSG_TRUNC,
                       MSG_PEEK | MSG_WAITALL, MSG_OOB | MSG_PEEK);
    int waits = draw(2), name_length = draw(6) ? sizeof(struct name) : draw(sizeof(struct name));
    if (how < 2) flags = 0;
    else if (!waits) flags |= MSG_DONTWAIT;
    /* Linux's answer to who wants no bytes depends on more than there is to see. */
    if (!count && s->connection) count = 1;
    if (!comes_back(s, count, flags)) {
        if (how < 2) how = 2;
        flags |= MSG_DONTWAIT;
    }
    memset(room, 0, sizeof room);
    struct name name = {.family = 0};
    socklen_t len = name_length;
    char beside[512];
    struct iovec pieces[3];
    for (int i = 0, from = 0; i < parts; i++) {
        int size = i == parts - 1 ? count - from : count / parts;
        pieces[i] = (struct iovec){room + from, size};
        from += size;
    }
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = parts, .msg_name = &name, .msg_namelen = len,
                             .msg_control = beside, .msg_controllen = sizeof beside};
    const char *call = (const char *[]){"read", "readv", "recv", "recvfrom", "recvmsg"}[how];
    if (how == 0) MAKE(read(fd, room, count));
    else if (how == 1) MAKE(readv(fd, pieces, parts));
    else if (how == 2) MAKE(recv(fd, room, count, flags));
    else if (how == 3) MAKE(recvfrom(fd, room, count, flags, (struct sockaddr *)&name, &len));
    else MAKE(recvmsg(fd, &message, flags));
    said("%s(%d, %d, %s)", call, fd, count, flags_text(flags));
    if (result > 0) out("  %08x", checksum(room, result < count ? result : count));
    if (result >= 0 && how == 3) out("  from %s", name_text(s, &name, len));
    if (result >= 0 && how == 4) show_message(s, &message);
    if (result > 0 && s->connection && !(flags & (MSG_PEEK | MSG_OOB | MSG_ERRQUEUE))) s->connection->here -= result;
}

static void call_shutdown(void) {
    int slot = pick(EITHER), how = ONE_OF(SHUT_RD, SHUT_WR, SHUT_RDWR, SHUT_WR, 3);
    if (slot < 0 || is_left_out(SHUTDOWN, at[slot])) return;
    struct endpoint *s = at[slot];
    MAKE(shutdown(slots[slot], how));
    said("shutdown(%d, %s)", slots[slot], how == SHUT_RD ? "RD" : how == SHUT_WR ? "WR" : how == SHUT_RDWR ? "RDWR" : "3");
    if (result < 0) return;
    if (s->is_listening && how != SHUT_WR) stop_listening(s);
    if (how != SHUT_WR && (s->is_datagram || s->connection)) s->is_shut = 1;
    if (s->connection && how != SHUT_RD) shut_by_us(s->connection);
}

static void call_close(void) {
    int slot = pick(EITHER);
    if (slot < 0 || is_left_out(CLOSE, at[slot])) return;
    MAKE(close(slots[slot]));
    said("close(%d)", slots[slot]);
    forget(slot);
}

static void call_dup(void) {
    int slot = pick(EITHER), how = draw(4), over = pick(EITHER), onto = draw(2), high = 40 + draw(20);
    int new = free_slot();
    if (slot < 0 || new < 0) return;
    int fd = slots[slot], to = onto && over != slot && !is_left_out(CLOSE, at[over]) ? slots[over] : high;
    if (how == 0) {
        MAKE(dup(fd));
        said("dup(%d)", fd);
    } else if (how == 1) {
        MAKE(fcntl(fd, draw(2) ? F_DUPFD : F_DUPFD_CLOEXEC, high));
        said("fcntl(%d, F_DUPFD, %d)", fd, high);
    } else {
        int flags = ONE_OF(0, O_CLOEXEC, 1);
        MAKE(how == 2 ? dup2(fd, to) : dup3(fd, to, flags));
        said("dup%d(%d, %d)", how, fd, to);
    }
    if (result < 0) return;
    /* What had this number before is closed by that. */
    for (int i = 0; i < SLOTS; i++)
        if (at[i] && slots[i] == result) {
            if (i == slot) return;
            at[slot]->descriptors++;
            forget(i);
            slots[i] = result, at[i] = at[slot];
            return;
        }
    slots[new] = result, at[new] = at[slot];
    at[slot]->descriptors++;
}

static void call_flags(void) {
    int slot = pick(EITHER), how = draw(4);
    if (slot < 0) return;
    int fd = slots[slot];
    if (how == 0) {
        MAKE(fcntl(fd, F_GETFL));
        said("fcntl(%d, F_GETFL)", fd);
    } else if (how == 1) {
        MAKE(fcntl(fd, F_GETFD));
        said("fcntl(%d, F_GETFD)", fd);
    } else {
        int value = draw(2), flags = (value ? O_NONBLOCK : 0) | (draw(6) || is_left_out(APPEND, at[slot]) ? 0 : O_APPEND);
        if (how == 2) {
            MAKE(fcntl(fd, F_SETFL, flags));
            said("fcntl(%d, F_SETFL, %#x)", fd, flags);
        } else {
            MAKE(ioctl(fd, FIONBIO, &value));
            said("ioctl(%d, FIONBIO, %d)", fd, value);
        }
        if (result == 0) at[slot]->is_nonblocking = value;
    }
}

static void call_name(void) {
    int slot = pick(EITHER), whose = draw(2);
    if (slot < 0 || (!whose && is_left_out(ASK_OWN_NAME, at[slot]))) return;
    struct name name = {.family = 0};
    socklen_t len = draw(8) ? sizeof name : draw(sizeof name);
    MAKE((whose ? getpeername : getsockname)(slots[slot], (struct sockaddr *)&name, &len));
    said("%s(%d)", whose ? "getpeername" : "getsockname", slots[slot]);
    if (result == 0) out("  %s", name_text(at[slot], &name, len));
}

static const char *hex(const void *bytes, int count) {
    static char text[129];
    *text = 0;
    for (int i = 0; i < count && i < 64; i++) sprintf(text + 2 * i, "%02x", ((const unsigned char *)bytes)[i]);
    return text;
}

static void call_get_option(void) {
    int slot = pick(EITHER);
    const struct option_kind *kind = &options[draw(OPTIONS)];
    socklen_t len = draw(4) ? kind->size : draw(24), asked = len;
    char value[64] = {0};
    if (slot < 0 || kind->is_of & SET_ONLY || (kind->is_of & OF_THE_WAY && is_left_out(ASK_THE_WAY, at[slot]))) return;
    MAKE(getsockopt(slots[slot], kind->level, kind->name, value, &len));
    said("getsockopt(%d, %s, %d)", slots[slot], kind->text, asked);
    if (result == 0) out("  %d: %s", len, hex(value, len));
}

static void call_set_option(void) {
    int slot = pick(EITHER);
    const struct option_kind *kind = &options[draw(OPTIONS)];
    int value[8] = {0}, odd = draw(6) == 0;
    value[0] = kind->low + (int)draw(kind->high - kind->low + 1);
    if (odd && kind->is_of & NONSENSE) value[0] = ONE_OF(-1, INT_MAX, INT_MIN, 65536, 256, -2);
    if (kind->size > 4) value[1] = draw(3);
    if (kind->name == SO_LINGER && kind->level == SOL_SOCKET) value[0] = draw(2);
    if (kind->text[0] == '"') strcpy((char *)value, ((const char *[]){"cubic", "reno", "nonsense", ""})[draw(4)]);
    socklen_t len = draw(10) ? kind->size : draw(20);
    if (slot < 0 || kind->is_of & GET_ONLY) return;
    struct endpoint *s = at[slot];
    MAKE(setsockopt(slots[slot], kind->level, kind->name, value, len));
    said("setsockopt(%d, %s, %s, %d)", slots[slot], kind->text, hex(value, kind->size), len);
    if (result < 0 || kind->level != SOL_SOCKET) {
        if (result == 0 && kind->level == IPPROTO_IP && kind->name == IP_RECVERR) s->hears_errors = value[0] != 0;
        return;
    }
    if (kind->name == SO_LINGER) s->lingers_not = value[0] && !value[1];
    if (kind->name == SO_RCVLOWAT) s->low_water = value[0] > 0 ? value[0] : 1 << 30;
    if (kind->name == SO_PEEK_OFF) s->peeks_behind = value[0] >= 0;
}

static void call_poll(void) {
    struct pollfd polled[SLOTS];
    int count = 0, all = draw(3), one = pick(EITHER), events = ONE_OF(POLLIN | POLLOUT | POLLRDHUP | POLLPRI, POLLIN, 0, POLLOUT);
    for (int i = 0; i < SLOTS; i++)
        if (at[i] && (all || i == one)) polled[count++] = (struct pollfd){slots[i], events, 0};
    if (!count) return;
    MAKE(poll(polled, count, 0));
    said("poll(%d, %#x)", count, events);
    for (int i = 0; i < count; i++) out("  %d: %#x", polled[i].fd, polled[i].revents);
}

static void call_select(void) {
    fd_set sets[3];
    int highest = -1;
    for (int i = 0; i < 3; i++) FD_ZERO(&sets[i]);
    for (int i = 0; i < SLOTS; i++)
        if (at[i]) {
            for (int k = 0; k < 3; k++) FD_SET(slots[i], &sets[k]);
            if (slots[i] > highest) highest = slots[i];
        }
    if (highest < 0) return;
    struct timeval none = {0, 0};
    MAKE(select(highest + 1, &sets[0], &sets[1], &sets[2], &none));
    said("select");
    for (int i = 0; i < SLOTS; i++)
        if (at[i])
            out("  %d: %d %d %d", slots[i], FD_ISSET(slots[i], &sets[0]) != 0, FD_ISSET(slots[i], &sets[1]) != 0,
                FD_ISSET(slots[i], &sets[2]) != 0);
}

static int epolls[2], registrations;

static void call_epoll_ctl(void) {
    int slot = pick(EITHER), set = draw(2), what = ONE_OF(EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL);
    unsigned events = (unsigned)ONE_OF(EPOLLIN, EPOLLIN | EPOLLOUT, EPOLLOUT, EPOLLIN | EPOLLRDHUP | EPOLLPRI, 0);
    if (draw(3) == 0) events |= EPOLLET;
    if (draw(8) == 0) events |= EPOLLONESHOT;
    if (draw(12) == 0) events |= EPOLLEXCLUSIVE;
    if (slot < 0) return;
    if (is_left_out(EDGES, at[slot])) events &= ~EPOLLET;
    struct epoll_event event = {.events = events, .data.u32 = ++registrations};
    MAKE(epoll_ctl(epolls[set], what, slots[slot], &event));
    at[slot]->is_watched |= result == 0;
    said("epoll_ctl(%d, %s, %d, %#x, data %d)", set, what == EPOLL_CTL_ADD ? "ADD" : what == EPOLL_CTL_MOD ? "MOD" : "DEL",
         slots[slot], events, registrations);
}

static int by_data(const void *one, const void *other) {
    return ((const struct epoll_event *)one)->data.u32 - ((const struct epoll_event *)other)->data.u32;
}

static void call_epoll_wait(void) {
    struct epoll_event got[64];
    int set = draw(2);
    /* While sockets on paths have events the kernel's are looked for each 50 us (KERNEL_LOOK_NS). */
    usleep(100);
    MAKE(epoll_wait(epolls[set], got, 64, 0));
    said("epoll_wait(%d)", set);
    if (result > 0) qsort(got, result, sizeof *got, by_data);
    for (long i = 0; i < result; i++) out("  %d: %#x", got[i].data.u32, got[i].events);
}

static int unsent(int fd) {
    int count = -1;
    return ioctl(fd, SIOCOUTQ, &count) == 0 ? count : -errno;
}

static void call_ioctl(void) {
    int slot = pick(EITHER), value = -1;
    if (slot < 0) return;
    struct endpoint *s = at[slot];
    int fd = slots[slot];
    switch (draw(4)) {
    case 0:
        MAKE(ioctl(fd, FIONREAD, &value));
        return said("ioctl(%d, FIONREAD, %d)", fd, value);
    case 1:
        if (is_left_out(ASK_UNSENT, s)) return;
        if (is_connected(s) || s->is_datagram) REACH(unsent(fd), 0);
        MAKE(ioctl(fd, SIOCOUTQ, &value));
        return said("ioctl(%d, SIOCOUTQ, %d)", fd, value);
    case 2:
        MAKE(ioctl(fd, SIOCATMARK, &value));
        return said("ioctl(%d, SIOCATMARK, %d)", fd, value);
    default:
        if (s->is_datagram) return;
        result = tcp_state(fd);
        failed_with = 0;
        return said("state(%d)", fd);
    }
}

static void other_host_connects(void) {
    int slot = pick_such(is_listening);
    if (slot < 0 || at[slot]->waiting == QUEUE) return;
    struct endpoint *s = at[slot];
    struct connection *c = new_connection();
    out("%d the other host connects to %d", call_number, slots[slot]);
    EXPECT("connect c%d %s %d", c->id, own, own_port(slots[slot]));
    have_their_end(c);
    int port = own_port(slots[slot]);
    for (int n = 0; n < PORTS_OF_A_SEED; n++)
        if (port == first_port() + n) has_accepted[n] = 1;
    s->queue[s->waiting++] = c;
    if (!(await(slots[slot], POLLIN) & POLLIN)) out("  nothing to accept");
    ask("nothing");
}

/* A connection that the other host has, also one that is not accepted yet. */
static struct connection *pick_theirs(void) {
    int from = draw(connection_count + 1);
    for (int i = 0; i < connection_count; i++) {
        struct connection *c = &connections[(from + i) % connection_count];
        if (!c->they_left) return c;
    }
    return NULL;
}

static void other_host_acts(void) {
    int what = draw(20), count = ONE_OF(1, 2, 10, 100, 1000, 1400, 3000, 8000);
    struct connection *c = pick_theirs();
    if (!c) return;
    if (what < 9) {
        if (c->they_shut || c->is_reset || c->here + count > MUCH) return;
        if (c->is_urgent && c->owner && c->owner->is_shut && c->we_shut) return;
        out("%d the other host sends %d by c%d", call_number, count, c->id);
        EXPECT("pattern c%d %d %d", c->id, c->heard, count);
        c->heard += count, c->here += count;
        if (c->owner && c->owner->is_shut && c->we_shut) return refused(c);
        if (c->is_urgent) EXPECT("acknowledged c%d", c->id);
        settle(c);
    } else if (what < 14) {
        if (!c->there) return;
        int taken = 1 + draw(c->there);
        out("%d the other host takes %s", call_number, ask("taken c%d %d", c->id, taken));
        c->there -= taken;
    } else if (what < 15) {
        if (c->they_shut || c->is_reset || (c->owner && c->owner->is_shut && c->we_shut)) return;
        out("%d the other host sends urgently by c%d", call_number, c->id);
        c->is_urgent = 1;
        EXPECT("urgent c%d X", c->id);
        EXPECT("acknowledged c%d", c->id);
        ask("nothing");
    } else {
        enum leaving how = ONE_OF(SAYS_NO_MORE, CLOSES, RESETS);
        if (how == SAYS_NO_MORE && c->they_shut) return;
        out("%d the other host %s c%d", call_number, (const char *[]){"shuts", "closes", "resets"}[how], c->id);
        leave(c, how);
    }
}

static void other_host_sends_a_datagram(void) {
    int slot = pick(DATAGRAM), from = draw(THEIRS), count = ONE_OF(0, 1, 10, 100, 1000, 1472, 3000);
    int port = slot < 0 ? 0 : own_port(slots[slot]);
    if (!port || at[slot]->is_deaf) return;
    out("%d the other host sends a datagram of %d from %d to %d", call_number, count, from, slots[slot]);
    if (count) EXPECT("sendto_long U%d %s %d %d", from, own, port, count);
    else EXPECT("sendto_empty U%d %s %d", from, own, port);
    int to = at[slot]->to;
    struct pollfd one = {slots[slot], POLLIN, 0};
    /* What is for nobody is answered, or not; nothing of that is seen here. */
    if (!to || to == DATAGRAMS_PORT + from) poll(&one, 1, 200);
    ask("nothing");
}

static const struct {
    int weight;
    void (*make)(void);
} calls[] = {
    {10, make_socket}, {8, call_bind}, {4, call_listen}, {10, call_connect}, {8, call_accept}, {14, call_send},
    {16, call_receive}, {5, call_shutdown}, {4, call_close}, {4, call_dup}, {4, call_flags}, {7, call_name},
    {8, call_get_option}, {10, call_set_option}, {6, call_poll}, {3, call_select}, {6, call_epoll_ctl},
    {6, call_epoll_wait}, {6, call_ioctl}, {8, other_host_connects}, {16, other_host_acts},
    {6, other_host_sends_a_datagram},
};

static int call_count;

static int is_asked_for(int number) {
    const char *only = getenv("SCOUTLINE_RANDOM_ONLY");
    if (!only) return 1;
    for (const char *at = only; *at; at += strcspn(at, ","), at += *at == ',')
        if (atoi(at) == number) return 1;
    return 0;
}

static void run_seed(void) {
    seed = strtoull(case_name + strlen("seed_"), NULL, 10);
    struct sigaction action = {.sa_handler = on_signal};
    NEED(sigaction(SIGPIPE, &action, NULL) == 0 && sigaction(SIGALRM, &action, NULL) == 0);
    /* As many ports as are used, always the same ones; the last must not be there. */
    NEED(atoi(ask("listen L 16 %d", STREAMS_PORT)) == STREAMS_PORT);
    for (int i = 0; i < THEIRS; i++) NEED(atoi(ask("bind U%d %d", i, DATAGRAMS_PORT + i)) == DATAGRAMS_PORT + i);
    for (int i = 0; i < 2; i++) {
        int set = epoll_create1(0);
        /* Out of the way. */
        NEED((epolls[i] = fcntl(set, F_DUPFD, HIGH + 10)) >= 0 && close(set) == 0);
    }
    int total = 0;
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) total += calls[i].weight;
    for (call_number = 0; call_number < call_count; call_number++) {
        if (!is_asked_for(call_number)) continue;
        drawn = (seed << 20) + call_number;
        draw(2);
        drawn = drawn * 0x2545f4914f6cdd1d + draw(1 << 30);
        int weight = draw(total);
        unsigned which = 0;
        while (weight >= calls[which].weight) weight -= calls[which++].weight;
        calls[which].make();
    }
}

__attribute__((constructor)) static void enter_seeds(void) {
    int first = 0, count = 20;
    call_count = 150;
    const char *wish = getenv("SCOUTLINE_RANDOM");
    if (wish) sscanf(wish, "%d %d %d", &first, &count, &call_count);
    static char names[CASES][16];
    for (int i = 0; i < count && i < CASES; i++) {
        snprintf(names[i], sizeof names[i], "seed_%d", first + i);
        cases[case_count++] = (struct test_case){names[i], run_seed};
    }
}
