/* What `random.c` knows of its sockets: as much as it takes to wait for what a call causes, and no more.
 *
 * A call that sends something has a consequence: at the other host, or, by its answer, here. Before the next call that
 * has to have happened, or a transcript would tell of races. So each connection is known by how much either end has
 * not read yet and who has ended it how; `settle` waits until our end looks like that, and the other host is asked to
 * wait until its end does. When that does not come the transcript says so, and goes on.
 */
#include "compare.h"
#include <linux/sockios.h>

enum {
    /* Ports of the other host, below those that are drawn: 7109 is nobody's. */
    STREAMS_PORT = 7100,
    DATAGRAMS_PORT = 7103,
    THEIRS = 2,
    CLOSED_PORT = 7109,
    FIRST_DRAWN_PORT = 32768,
    /* Of ours each process has its own. */
    OUR_PORTS = 12000,
    PORTS_OF_A_SEED = 8,
    SLOTS = 9,
    SOCKETS = 1024,
    QUEUE = 3,
    /* So much may lie unread; less than every buffer takes. */
    MUCH = 20000,
};

/* RFC 9293 §3.3.2, as TCP_INFO counts them. */
enum state { ESTABLISHED = 1, FIN_WAIT_2 = 5, CLOSED = 7, CLOSE_WAIT = 8 };

/* A connection with the other host, where its name is `c` and the number. */
struct connection {
    int id, their_port;
    int here, there;   /* bytes that nobody has read yet */
    int said, heard;   /* bytes sent so far, which decides what the next are */
    int we_shut, they_shut, they_left, is_reset, is_urgent;
    struct endpoint *owner; /* none while it waits to be accepted */
};

/* One of our sockets: what all its descriptors share. */
struct endpoint {
    int is_datagram, descriptors;
    struct connection *connection;
    int is_bound, is_listening, has_listened, waiting;
    struct connection *queue[QUEUE];
    int is_nonblocking, lingers_not, low_water, peeks_behind, hears_errors, has_tried, is_untold, is_watched, is_nowhere;
    /* Of a datagram socket: the port of the other host that it is connected to, and whether it may be the kernel's still,
     * since it is bound to every address and a drawn port (README, Limits). */
    int to, is_deaf, is_shut;
    /* Ports that the system drew, in the order in which they were seen: what is printed is the place. */
    int drawn[4], drawn_count;
};

static struct endpoint endpoints[SOCKETS];
static struct connection connections[SOCKETS];
static int endpoint_count, connection_count;
/* Descriptors, and whose they are. */
static int slots[SLOTS];
static struct endpoint *at[SLOTS];

__attribute__((format(printf, 1, 2))) static const char *ask(const char *format, ...) {
    char command[255];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    return order(command);
}

/* What should go well at the other host: if not, the transcript shows it. */
#define EXPECT(...)                                                                                                    \
    do {                                                                                                               \
        if (strcmp(ask(__VA_ARGS__), "ok")) out("  the other host: %s", answer);                                       \
    } while (0)

static const char *port_text(struct endpoint *s, int port) {
    static char text[4][16];
    static int turn;
    turn = (turn + 1) % 4;
    if (port < OUR_PORTS) return snprintf(text[turn], 16, "%d", port), text[turn];
    if (port < FIRST_DRAWN_PORT) return snprintf(text[turn], 16, "ours %d", port % PORTS_OF_A_SEED), text[turn];
    if (s->connection && port == s->connection->their_port) return "theirs";
    int i = 0;
    while (i < s->drawn_count && s->drawn[i] != port) i++;
    if (i == s->drawn_count && i < 4) s->drawn[s->drawn_count++] = port;
    return snprintf(text[turn], 16, "#%d", i), text[turn];
}

static int own_port(int fd) {
    struct name name = {.family = 0};
    socklen_t len = sizeof name;
    return getsockname(fd, (struct sockaddr *)&name, &len) == 0 ? ntohs(name.port) : 0;
}

static int slot_of(const struct endpoint *s) {
    for (int i = 0; i < SLOTS; i++)
        if (at[i] == s) return i;
    return -1;
}

static int free_slot(void) { return slot_of(NULL); }

static struct endpoint *enter(int fd, int is_datagram, int is_nonblocking) {
    int slot = free_slot();
    NEED(slot >= 0 && endpoint_count < SOCKETS);
    struct endpoint *s = &endpoints[endpoint_count++];
    *s = (struct endpoint){.is_datagram = is_datagram, .is_nonblocking = is_nonblocking, .is_deaf = is_datagram, .descriptors = 1, .low_water = 1};
    slots[slot] = fd, at[slot] = s;
    return s;
}

/* A connection of which the other host has the end `c` and the number. */
static struct connection *new_connection(void) {
    NEED(connection_count < SOCKETS);
    struct connection *c = &connections[connection_count];
    c->id = connection_count++;
    return c;
}

/* The other host has its end now. Urgent bytes stand among the others there, so that it can count them. */
static void have_their_end(struct connection *c) {
    EXPECT("option c%d %d %d 1", c->id, SOL_SOCKET, SO_OOBINLINE);
    c->their_port = atoi(ask("connect_port c%d", c->id));
}

static int tcp_state(int fd) {
    struct tcp_info information = {0};
    socklen_t len = sizeof information;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &information, &len) < 0) return -errno;
    return information.tcpi_state;
}

static int readable(int fd) {
    int count = -1;
    return ioctl(fd, FIONREAD, &count) == 0 ? count : -errno;
}

/* Waits until `now` gives this: what it gave. */
#define REACH(now, wanted)                                                                                             \
    ({                                                                                                                 \
        int is_ = (now);                                                                                               \
        for (int tries_ = 0; is_ != (wanted) && tries_ < 2 * SOON_MS; is_ = (now), tries_++) usleep(250);              \
        is_;                                                                                                           \
    })

/* Waits until our end of a connection knows what has happened to it. */
static void settle(struct connection *c) {
    int slot = c->owner ? slot_of(c->owner) : -1;
    if (slot < 0) {
        /* Nobody can look; the answer comes behind what was sent. */
        ask("nothing");
        return;
    }
    int fd = slots[slot], wanted = ESTABLISHED;
    if (c->is_reset || (c->we_shut && c->they_shut)) wanted = CLOSED;
    else if (c->we_shut) wanted = FIN_WAIT_2;
    else if (c->they_shut) wanted = CLOSE_WAIT;
    int state = REACH(tcp_state(fd), wanted);
    if (state != wanted) out("  state %d, not %d", state, wanted);
    if (c->is_urgent || c->is_reset) return;
    int count = REACH(readable(fd), c->here);
    if (count != c->here) out("  readable %d, not %d", count, c->here);
}

static int is_over(const struct connection *c) { return c->is_reset || (c->we_shut && c->they_shut); }

/* Our end is gone, by a reset or not; what the other end sees, which goes, too. */
static void left(struct connection *c, int by_reset) {
    c->owner = NULL;
    if (c->they_left) return;
    c->they_left = 1;
    /* Whether urgent data count as read is not known here. An end is seen after a reset as well. */
    if (c->is_urgent) ask("nothing");
    const char *how = by_reset && !is_over(c) && !c->is_urgent ? "reset" : "end";
    out("  the other end: %s", ask("finish c%d %s", c->id, how));
}

/* Data came where nobody will read them: after SHUT_RDWR that is answered with a reset (RFC 1122 §4.2.2.13). */
static void refused(struct connection *c) {
    c->is_reset = c->they_left = 1;
    out("  the other end: %s", ask("finish c%d reset", c->id));
    settle(c);
}

static void stop_listening(struct endpoint *s) {
    for (int i = 0; i < s->waiting; i++) left(s->queue[i], 1);
    s->is_listening = s->waiting = 0;
}

/* A descriptor is closed; with the last one the socket goes. */
static void forget(int slot) {
    struct endpoint *s = at[slot];
    at[slot] = NULL;
    if (--s->descriptors) return;
    stop_listening(s);
    if (s->connection) left(s->connection, s->connection->here > 0 || s->lingers_not);
}

/* Our end has sent so much. */
static void sent(struct connection *c, int count) {
    c->said += count;
    if (c->they_left) {
        /* The answer is a reset. */
        c->is_reset = 1;
        settle(c);
        return;
    }
    c->there += count;
    EXPECT("arrived c%d %d", c->id, c->there);
}

static void shut_by_us(struct connection *c) {
    if (c->we_shut || c->is_reset) return;
    c->we_shut = 1;
    if (!c->they_left) EXPECT("arrived c%d %d end", c->id, c->there);
    settle(c);
}

/* The first `count` of the other host's ways to leave: it says no more, it closes, it resets. */
enum leaving { SAYS_NO_MORE, CLOSES, RESETS };

static void leave(struct connection *c, enum leaving how) {
    static const char *const words[] = {"shut", "close", "reset"};
    EXPECT("%s c%d", words[how], c->id);
    int was_over = is_over(c);
    c->they_left = how != SAYS_NO_MORE;
    if (how == RESETS || (how == CLOSES && c->there > 0)) c->is_reset = !was_over;
    else c->they_shut = 1;
    settle(c);
}
