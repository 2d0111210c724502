/* What TCP tells of a connection (TCP_INFO, TCP_CONGESTION), and options by what they do: TCP_DEFER_ACCEPT, SO_LINGER,
 * SO_RCVLOWAT, SO_SNDTIMEO, TCP_MAXSEG, TCP_INQ, SO_PEEK_OFF.
 */
#include "compare.h"

static int started(const char *role) { return role == NULL; }

/* As `net/tcp_states.h` of Linux has them. */
enum { ESTABLISHED = 1, SYN_SENT = 2, FIN_WAIT_2 = 5, CLOSE = 7, CLOSE_WAIT = 8 };

static struct tcp_info info;

static void ask(int fd) {
    memset(&info, 0x5a, sizeof info);
    socklen_t len = sizeof info;
    T(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
}

/* The state, once it is that: it follows from what crosses the wire. */
static void state(int fd, const char *when, int expected) {
    socklen_t len = sizeof info;
    for (int i = 0; i < SOON_MS; i++) {
        NEED(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
        if (info.tcpi_state == expected) break;
        usleep(1000);
    }
    out("%s: state %d", when, info.tcpi_state);
}

static int within(unsigned long long value, unsigned long long low, unsigned long long high) {
    return value >= low && value <= high;
}

CASE(states_of_a_socket) {
    int fd = socket(family, SOCK_STREAM, 0);
    ask(fd);
    out("fresh: state %d, %u bytes a segment", info.tcpi_state, info.tcpi_snd_mss);
    struct name at = name_of(own, 0);
    T(bind(fd, ADDRESS(at)));
    ask(fd);
    out("bound: state %d", info.tcpi_state);
    T(listen(fd, 7));
    ask(fd);
    out("listening: state %d, %u of %u wait", info.tcpi_state, info.tcpi_unacked, info.tcpi_sacked);
    tell("connect A %s %d", own, port_of(fd));
    tell("connect B %s %d", own, port_of(fd));
    T(await(fd, POLLIN));
    for (int i = 0; i < 100 && info.tcpi_unacked != 2; i++) ask(fd), usleep(1000);
    out("listening: state %d, %u of %u wait", info.tcpi_state, info.tcpi_unacked, info.tcpi_sacked);
}

CASE(states_when_the_peer_ends_first) {
    int fd = accepted("A");
    state(fd, "established", ESTABLISHED);
    tell("shut A");
    state(fd, "the peer has shut", CLOSE_WAIT);
    T(shutdown(fd, SHUT_WR));
    state(fd, "both have", CLOSE);
}

CASE(states_when_we_end_first) {
    int fd = accepted("A");
    T(shutdown(fd, SHUT_WR));
    state(fd, "we have shut", FIN_WAIT_2);
    tell("reset A");
    state(fd, "reset", CLOSE);
}

CASE(states_of_a_connect) {
    struct name to = name_of(nobody(), 9);
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    T(connect(fd, ADDRESS(to)));
    state(fd, "on its way", SYN_SENT);
}

CASE(what_is_agreed) {
    static const char *ways[] = {"accepted", "connected"};
    for (int i = 0; i < 2; i++) {
        int fd = i ? connected("B") : accepted("A");
        ask(fd);
        out("%s: options %x, congestion %d", ways[i], info.tcpi_options, info.tcpi_ca_state);
        out("segments %u, advertised %u, path %u", info.tcpi_snd_mss, info.tcpi_advmss, info.tcpi_pmtu);
        out("scaled %d and %d", info.tcpi_snd_wscale > 0, info.tcpi_rcv_wscale > 0);
        out("window %d, timer %d, round trip %d, least %d", info.tcpi_snd_cwnd == 10,
            within(info.tcpi_rto, 200000, 400000), within(info.tcpi_rtt, 1, 1000000),
            info.tcpi_min_rtt <= info.tcpi_rtt);
        out("threshold %u, probes %d, retransmits %d, backoff %d, lost %u, sent again %u, in all %u",
            info.tcpi_snd_ssthresh, info.tcpi_probes, info.tcpi_retransmits, info.tcpi_backoff, info.tcpi_lost,
            info.tcpi_retrans, info.tcpi_total_retrans);
        out("acknowledged %llu, received %llu, sent %llu", info.tcpi_bytes_acked, info.tcpi_bytes_received,
            info.tcpi_bytes_sent);
    }
}

CASE(what_is_counted) {
    int fd = accepted("A");
    static char bytes[50000];
    T(send(fd, bytes, sizeof bytes, 0));
    tell("read A 50000");
    tell("fill A 30000");
    T(recv(fd, bytes, 30000, MSG_WAITALL));
    /* The last acknowledgment may be on its way. */
    for (int i = 0; i < 1000 && (ask(fd), info.tcpi_unacked); i++) usleep(1000);
    out("acknowledged %llu, received %llu, sent %llu, again %llu", info.tcpi_bytes_acked, info.tcpi_bytes_received,
        info.tcpi_bytes_sent, info.tcpi_bytes_retrans);
    out("unacked %u, sacked %u, lost %u, unsent %u, retransmits %d, in all %u", info.tcpi_unacked, info.tcpi_sacked,
        info.tcpi_lost, info.tcpi_notsent_bytes, info.tcpi_retransmits, info.tcpi_total_retrans);
    out("state of congestion %d, window %d, delivered %d", info.tcpi_ca_state, info.tcpi_snd_cwnd >= 10,
        within(info.tcpi_delivered, 2, 100));
    out("segments in %d, out %d", info.tcpi_segs_in >= 2, info.tcpi_segs_out >= 2);
    /* 30,000 and 50,000 bytes in segments of 1,448 or 1,428, of which the last of a write may be short. */
    out("segments with data in %d, out %d", within(info.tcpi_data_segs_in, 21, 40),
        within(info.tcpi_data_segs_out, 35, 60));
    out("and all of them in %d, out %d", info.tcpi_segs_in >= info.tcpi_data_segs_in,
        info.tcpi_segs_out >= info.tcpi_data_segs_out);
    out("reordered %u, twice %u", info.tcpi_reord_seen, info.tcpi_dsack_dups);
    out("round trip %d, variance %d, least %d", within(info.tcpi_rtt, 1, 1000000), within(info.tcpi_rttvar, 0, 1000000),
        within(info.tcpi_min_rtt, 1, info.tcpi_rtt + 1000000));
    out("the peer's segments %d, its window %d, ours %d", info.tcpi_rcv_mss >= 536, info.tcpi_snd_wnd >= 10000,
        info.tcpi_rcv_space >= 10000);
    out("last sent %d, heard %d, acknowledged %d", info.tcpi_last_data_sent < 3000, info.tcpi_last_data_recv < 3000,
        info.tcpi_last_ack_recv < 3000);
    out("held by the window while busy %d", info.tcpi_rwnd_limited <= info.tcpi_busy_time);
    out("rate of delivery %d", info.tcpi_delivery_rate > 0);
    unsigned long long rate = 1000000;
    T(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate));
    ask(fd);
    out("at most %llu", info.tcpi_max_pacing_rate);
}

CASE(what_stands_still) {
    int fd = accepted("A");
    static char bytes[1 << 20];
    nonblock(fd);
    do while (send(fd, bytes, sizeof bytes, 0) > 0);
    while (poll(&(struct pollfd){fd, POLLOUT, 0}, 1, 300) > 0);
    ask(fd);
    out("unsent %d, held by the window %d, state %d", info.tcpi_notsent_bytes > 0, info.tcpi_rwnd_limited > 100000,
        info.tcpi_state);
    out("held by its own room %d", info.tcpi_sndbuf_limited > 100000);
    out("probes or none, never sent again: %u", info.tcpi_total_retrans);
}

CASE(cut_to_the_room) {
    int fd = connected("A");
    for (socklen_t room = 0; room <= 512; room += 52) {
        char bytes[512];
        socklen_t len = room;
        T(getsockopt(fd, IPPROTO_TCP, TCP_INFO, bytes, &len));
        out("room %u: %u", room, len > 232 ? 232 : len);
    }
    T(setsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, sizeof info));
}

CASE(congestion_control) {
    int fd = connected("A"), fresh = socket(family, SOCK_STREAM, 0);
    static const char *names[] = {"reno", "cubic", "nothing", ""};
    for (int i = 0; i < 4; i++) {
        char name[16] = "";
        socklen_t len = sizeof name;
        T(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, names[i], strlen(names[i])));
        T(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len));
        if (i < 2) out("%s, %u", name, len);
        T(setsockopt(fresh, IPPROTO_TCP, TCP_CONGESTION, names[i], strlen(names[i])));
    }
}

CASE(accept_deferred_until_data) {
    int fd = listener();
    T(set_option(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, 5));
    tell("connect A %s %d", own, port_of(fd));
    T(poll(&(struct pollfd){fd, POLLIN, 0}, 1, 300));
    nonblock(fd);
    T(accept(fd, NULL, NULL));
    tell("send A hello");
    T(await(fd, POLLIN));
    int new = T(accept(fd, NULL, NULL));
    char bytes[8] = "";
    T(recv(new, bytes, 5, MSG_DONTWAIT));
    out("%s", bytes);
}

static long since(const struct timespec *begin) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - begin->tv_sec) * 1000 + (now.tv_nsec - begin->tv_nsec) / 1000000;
}

static void lingers(int fd) {
    struct linger linger = {1, 1};
    struct timespec begin;
    T(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    clock_gettime(CLOCK_MONOTONIC, &begin);
    T(close(fd));
    out("lingered %d", within(since(&begin), 900, 3000));
}

CASE(close_lingers_until_it_is_acknowledged) {
    int fd = accepted("A");
    static char bytes[1 << 20];
    struct timeval little = {0, 200000};
    T(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &little, sizeof little));
    while (send(fd, bytes, sizeof bytes, 0) > 0);
    out("full: %s", strerrorname_np(errno));
    /* The peer reads nothing: close waits for as long as it was told to. */
    lingers(fd);
}

/* A close has no flags: O_NONBLOCK changes nothing. */
CASE(close_lingers_without_blocking_too) {
    int fd = accepted("A");
    static char bytes[1 << 20];
    nonblock(fd);
    while (send(fd, bytes, sizeof bytes, 0) > 0 || poll(&(struct pollfd){fd, POLLOUT, 0}, 1, 200) == 1);
    lingers(fd);
}

CASE(low_water_holds_a_read) {
    int fd = accepted("A");
    T(set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 4));
    tell("send A abc");
    struct timeval little = {0, 200000};
    char bytes[8] = "";
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &little, sizeof little));
    /* Not enough: it waits, and gives what there is in the end. */
    T(recv(fd, bytes, 8, 0));
    out("%s", bytes);
    tell("send A defgh");
    T(recv(fd, bytes, 8, 0));
    out("%s", bytes);
}

CASE(segments_as_small_as_asked) {
    int fd = socket(family, SOCK_STREAM, 0);
    T(set_option(fd, IPPROTO_TCP, TCP_MAXSEG, 700));
    struct name to = name_of(peer, atoi(tell("listen L")));
    T(connect(fd, ADDRESS(to)));
    tell("accept L A");
    ask(fd);
    out("segments %u, advertised %u", info.tcpi_snd_mss, info.tcpi_advmss);
    T(option(fd, IPPROTO_TCP, TCP_MAXSEG));
}

/* TCP_INQ: each message tells what is left. */
CASE(what_is_left) {
    int listening = listener();
    T(set_option(listening, IPPROTO_TCP, TCP_INQ, 2));
    T(set_option(listening, IPPROTO_TCP, TCP_INQ, -1));
    T(option(listening, IPPROTO_TCP, TCP_INQ));
    T(set_option(listening, IPPROTO_TCP, TCP_INQ, 1));
    tell("connect a %s %d", own, port_of(listening));
    int fd = accept(listening, NULL, NULL);
    NEED(fd >= 0);
    T(option(fd, IPPROTO_TCP, TCP_INQ));
    tell("send a abcdefgh");
    for (int i = 0, n = 0; i < SOON_MS && n < 8; i++) {
        NEED(ioctl(fd, FIONREAD, &n) == 0);
        if (n < 8) usleep(1000);
    }
    static const struct {
        int len, flags, room;
    } reads[] = {{3, MSG_PEEK, 64}, {3, 0, 64}, {2, 0, 4}, {2, 0, 18}, {1, 0, 64}};
    for (int round = 0; round < 7; round++) {
        char bytes[16] = "", space[64] = "";
        struct iovec part = {bytes, round < 5 ? reads[round].len : 4};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space,
                                 .msg_controllen = round < 5 ? reads[round].room : 64};
        if (round == 5) {
            tell("shut a");
            NEED(await(fd, POLLRDHUP) & POLLRDHUP);
        }
        if (round == 6) T(set_option(fd, IPPROTO_TCP, TCP_INQ, 0));
        T(recvmsg(fd, &message, round < 5 ? reads[round].flags : 0));
        out("flags %x, %zu bytes beside", message.msg_flags, message.msg_controllen);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        if (head) {
            int left = -1;
            memcpy(&left, CMSG_DATA(head), head->cmsg_len >= CMSG_LEN(4) ? 4 : 0);
            out("level %d, type %d, %d left", head->cmsg_level, head->cmsg_type, left);
        }
    }
}

/* SO_PEEK_OFF: looks go on behind each other, reads bring them back. */
CASE(looks_behind_each_other) {
    int fd = accepted("a");
    char bytes[16] = "";
    T(option(fd, SOL_SOCKET, SO_PEEK_OFF));
    T(set_option(fd, SOL_SOCKET, SO_PEEK_OFF, 2));
    tell("send a abcdefghij");
    for (int i = 0, n = 0; i < SOON_MS && n < 10; i++) {
        NEED(ioctl(fd, FIONREAD, &n) == 0);
        if (n < 10) usleep(1000);
    }
    T(recv(fd, bytes, 3, MSG_PEEK));
    out("%.3s", bytes);
    T(option(fd, SOL_SOCKET, SO_PEEK_OFF));
    T(recv(fd, bytes, 3, MSG_PEEK));
    out("%.3s", bytes);
    T(recv(fd, bytes, 3, 0));
    out("%.3s", bytes);
    T(option(fd, SOL_SOCKET, SO_PEEK_OFF));
    T(recv(fd, bytes, 16, MSG_PEEK));
    out("%.2s", bytes);
    T(recv(fd, bytes, 16, MSG_PEEK | MSG_DONTWAIT));
    tell("send a kl");
    T(recv(fd, bytes, 2, MSG_PEEK | MSG_WAITALL));
    out("%.2s", bytes);
    T(recv(fd, bytes, 8, MSG_WAITALL));
    T(option(fd, SOL_SOCKET, SO_PEEK_OFF));
    T(set_option(fd, SOL_SOCKET, SO_PEEK_OFF, -1));
    T(option(fd, SOL_SOCKET, SO_PEEK_OFF));
    T(recv(fd, bytes, 1, MSG_PEEK));
    T(recv(fd, bytes, 1, MSG_PEEK));
    tell("shut a");
    T(await(fd, POLLRDHUP) & POLLRDHUP);
    T(set_option(fd, SOL_SOCKET, SO_PEEK_OFF, 0));
    T(recv(fd, bytes, 16, MSG_PEEK));
    /* Behind the last byte there is no end for who looks. */
    T(recv(fd, bytes, 16, MSG_PEEK | MSG_DONTWAIT));
}

/* A look behind the offset for more than comes. */
CASE(looks_that_end_early) {
    int fd = accepted("A");
    char bytes[8];
    struct timeval short_ = {0, 200000};
    NEED(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &short_, sizeof short_));
    tell("send A abc");
    T(await(fd, POLLIN));
    T(set_option(fd, SOL_SOCKET, SO_PEEK_OFF, 1));
    T(recv(fd, bytes, 5, MSG_PEEK | MSG_WAITALL));
    T(option(fd, SOL_SOCKET, SO_PEEK_OFF));
    T(recv(fd, bytes, 5, MSG_PEEK | MSG_WAITALL));
}
