/* What the cases of the comparison share.
 *
 *     PROGRAM OWN_ADDRESS PEER_ADDRESS OTHER_OWN OTHER_PEER PEER_PORT [CASE]
 *
 * The addresses decide over what the cases run: IPv4, IPv6, or IPv4 by sockets of IPv6 (mapped addresses, ::ffff:…).
 * The other two are those of the family that does not cross the wire then.
 * Without CASE all cases run, each as a new image of this program, so that none sees what another left behind, and
 * with a limit of time. A case prints what each call gave (T), and what the other host says (tell). What it prints on
 * the kernel and on paths has to be the same, descriptor numbers included.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <linux/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SOON_MS = 4000, CASE_S = 60, CASES = 4096, HIGH = 700 };

static const char *own, *peer, *other_own, *other_peer, *program, *case_name, *peer_port;
static pid_t case_thread;
static int control = -1;
static char answer[256];
/* Of the sockets, and whether IPv6 crosses the wire, too. */
static int family = AF_INET, over_inet6;

struct test_case {
    const char *name;
    void (*run)(void);
};
static struct test_case cases[CASES];
static int case_count;

/* Defines a case and enters it in the list. */
#define CASE(title)                                                                                                    \
    static void title(void);                                                                                           \
    __attribute__((constructor)) static void enter_##title(void) {                                                     \
        cases[case_count++] = (struct test_case){#title, title};                                                       \
    }                                                                                                                  \
    static void title(void)

/* One line of the transcript, in one write. Those of other threads and of children are marked: when they come among
 * those of the case itself is nobody's promise. */
__attribute__((format(printf, 1, 2))) static void out(const char *format, ...) {
    char line[1024];
    int n = snprintf(line, sizeof line, "%s%s: ", case_name, gettid() == case_thread ? "" : "+");
    va_list arguments;
    va_start(arguments, format);
    n += vsnprintf(line + n, sizeof line - n - 1, format, arguments);
    va_end(arguments);
    if (n > (int)sizeof line - 2) n = sizeof line - 2;
    line[n++] = '\n';
    if (write(1, line, n) != n) _exit(3);
}

static void die(const char *what) {
    out("FAILED: %s (%s)", what, strerrorname_np(errno));
    _exit(4);
}

/* Makes a call and prints what it gave. */
#define T(call)                                                                                                        \
    ({                                                                                                                 \
        errno = 0;                                                                                                     \
        long result_ = (long)(call);                                                                                   \
        int errno_ = errno;                                                                                            \
        out("%s = %ld %s", #call, result_, result_ < 0 ? strerrorname_np(errno_) : "");                                \
        errno = errno_;                                                                                                \
        result_;                                                                                                       \
    })

/* What should hold before a case is about anything. */
#define NEED(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) die(#condition);                                                                             \
    } while (0)

/* Has the other host do something; its answer. */
static const char *order(const char *command) {
    char line[256];
    int n = snprintf(line, sizeof line, "%s\n", command);
    NEED(send(control, line, n, MSG_NOSIGNAL) == n);
    int got = 0;
    do {
        int part = recv(control, answer + got, sizeof answer - 1 - got, 0);
        NEED(part > 0);
        got += part;
    } while (answer[got - 1] != '\n');
    answer[got - 1] = 0;
    return answer;
}

/* The same; prints it too, but for what tells of ports. */
__attribute__((format(printf, 1, 2))) static const char *tell(const char *format, ...) {
    char command[255];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    order(command);
    if (strncmp(command, "connect", 7) && strncmp(command, "listen", 6) && strncmp(command, "bind", 4) &&
        strncmp(command, "fast", 4) && strncmp(command, "sendto", 6) && strncmp(command, "beside", 6) &&
        strncmp(command, "watch", 5))
        out("peer %s -> %s", command, answer);
    return answer;
}

/* The family that these addresses are for. */
static void use_family_of(const char *address) {
    family = strchr(address, ':') ? AF_INET6 : AF_INET;
    over_inet6 = family == AF_INET6 && strncmp(address, "::ffff:", 7);
}

/* What fits what crosses the wire. */
#define PICK(inet, inet6) (over_inet6 ? (inet6) : (inet))
/* Level and name of an option of what crosses the wire, where the families have one each that says the same. */
#define OF_IP(inet, inet6) (over_inet6 ? IPPROTO_IPV6 : IPPROTO_IP), (over_inet6 ? (inet6) : (inet))

/* The name of a socket; family and port lie where both kinds of address have them. */
struct name {
    union {
        struct {
            sa_family_t family;
            in_port_t port;
        };
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
    };
};

/* A name of the family; IPv4's are mapped where that is IPv6. */
static struct name name_of(const char *host, int port) {
    struct name name = {.in6 = {.sin6_family = family, .sin6_port = htons(port)}};
    char mapped[INET6_ADDRSTRLEN + 7];
    snprintf(mapped, sizeof mapped, "%s%s", strchr(host, ':') ? "" : "::ffff:", host);
    int done = family == AF_INET6 ? inet_pton(AF_INET6, mapped, &name.in6.sin6_addr)
                                  : inet_pton(AF_INET, host, &name.in.sin_addr);
    NEED(done == 1);
    return name;
}

static socklen_t name_size(const void *name) {
    int inet6 = ((const struct sockaddr *)name)->sa_family == AF_INET6;
    return inet6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

#define ADDRESS(name) (struct sockaddr *)&(name), name_size(&(name))

/* The host of a name, as text. */
static const char *host_of(const struct name *name) {
    static char text[4][INET6_ADDRSTRLEN];
    static int turn;
    turn = (turn + 1) % 4;
    const void *at = name->family == AF_INET6 ? (const void *)&name->in6.sin6_addr : &name->in.sin_addr;
    inet_ntop(name->family == AF_INET6 ? AF_INET6 : AF_INET, at, text[turn], sizeof text[turn]);
    return text[turn];
}

/* An address on the wire that nobody has; another one for each family, and by trap, since silence is remembered. */
static const char *nobody(void) {
    if (!getenv("LD_PRELOAD")) return over_inet6 ? "2001:db8:77::79" : family == AF_INET6 ? "10.77.0.80" : "10.77.0.79";
    return over_inet6 ? "2001:db8:77::77" : family == AF_INET6 ? "10.77.0.78" : "10.77.0.77";
}

static int port_of(int fd) {
    struct name name;
    socklen_t len = sizeof name;
    NEED(getsockname(fd, (struct sockaddr *)&name, &len) == 0);
    return ntohs(name.port);
}

static int on = 1;

/* A socket that listens at our address. */
static int listener(void) {
    int fd = socket(family, SOCK_STREAM, 0);
    struct name name = name_of(own, 0);
    NEED(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    NEED(bind(fd, ADDRESS(name)) == 0 && listen(fd, 16) == 0);
    return fd;
}

/* A connection that we accepted; the other host calls its end `name`. */
static int accepted(const char *name) {
    int fd = listener();
    tell("connect %s %s %d", name, own, port_of(fd));
    int new = accept(fd, NULL, NULL);
    NEED(new >= 0 && close(fd) == 0);
    NEED(dup2(new, fd) == fd && close(new) == 0);
    return fd;
}

/* A connection that we opened; the other host calls its end `name`. */
static int connected(const char *name) {
    int port = atoi(tell("listen L%s", name));
    int fd = socket(family, SOCK_STREAM, 0);
    struct name to = name_of(peer, port);
    NEED(fd >= 0 && connect(fd, ADDRESS(to)) == 0);
    NEED(!strcmp(tell("accept L%s %s", name, name), "ok"));
    return fd;
}

static void nonblock(int fd) {
    NEED(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
}

/* Waits until `fd` has one of these events: what they are then. */
static int await(int fd, int events) {
    struct pollfd one = {fd, events, 0};
    return poll(&one, 1, SOON_MS) == 1 ? one.revents : -1;
}

static int now_has(int fd, int events) {
    struct pollfd one = {fd, events, 0};
    poll(&one, 1, 0);
    return one.revents;
}

/* A thread, or a process of one. */
static int sleeps(pid_t thread) {
    char name[64], text[512] = "";
    snprintf(name, sizeof name, "/proc/%d/stat", thread);
    int file = open(name, O_RDONLY | O_CLOEXEC);
    long n = read(file, text, sizeof text - 1);
    close(file);
    char *state = n > 0 ? strrchr(text, ')') : NULL;
    return state && state[2] == 'S';
}

/* Waits until a thread sleeps in a call. A bounded spin comes before the sleep, so it must sleep again and again. */
static void await_sleep(pid_t thread) {
    for (int in_a_row = 0; in_a_row < 5; usleep(10000)) in_a_row = sleeps(thread) ? in_a_row + 1 : 0;
}

static int option(int fd, int level, int name) {
    int value = -12345;
    socklen_t len = sizeof value;
    return getsockopt(fd, level, name, &value, &len) == 0 ? value : -errno;
}

static int set_option(int fd, int level, int name, int value) {
    return setsockopt(fd, level, name, &value, sizeof value);
}

/* Computes, so that time passes without a call; of this thread's own time, however busy the machine is. */
static void busy_ms(long ms) {
    struct timespec now, since;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &since);
    do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    while ((now.tv_sec - since.tv_sec) * 1000 + (now.tv_nsec - since.tv_nsec) / 1000000 < ms);
}

static void run_case(const struct test_case *test) {
    case_name = test->name;
    case_thread = gettid();
    /* Ignored by what a script has started in the background. */
    signal(SIGINT, SIG_DFL);
    signal(SIGQUIT, SIG_DFL);
    alarm(CASE_S);
    int fd = socket(family, SOCK_STREAM, 0);
    struct name to = name_of(peer, atoi(peer_port));
    NEED(fd >= 0 && connect(fd, ADDRESS(to)) == 0);
    /* Out of the way, and not for those whom a case starts. */
    control = fcntl(fd, F_DUPFD_CLOEXEC, HIGH);
    NEED(control >= 0 && close(fd) == 0);
    NEED(setsockopt(control, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    test->run();
    out("done");
}

/* What a program that was started with sockets does, by its last argument. */
static int started(const char *role);

int main(int count, char **arguments) {
    program = arguments[0];
    case_thread = gettid();
    if (count == 3 && !strcmp(arguments[1], "started")) return started(arguments[2]);
    if (count < 6) return 2;
    own = arguments[1], peer = arguments[2], other_own = arguments[3], other_peer = arguments[4];
    peer_port = arguments[5];
    use_family_of(own);
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int i = 0; i < case_count; i++) {
        if (count > 6) {
            if (!strcmp(arguments[6], cases[i].name)) {
                run_case(&cases[i]);
                return 0;
            }
            continue;
        }
        case_name = cases[i].name;
        case_thread = gettid();
        pid_t child = fork();
        if (child == 0) {
            setpgid(0, 0);
            execl(program, program, own, peer, other_own, other_peer, peer_port, cases[i].name, NULL);
            _exit(5);
        }
        int status;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR);
        if (status) {
            out("ended with status %x", status);
            /* The other host serves the next case once nobody has this one's connection to it any more. */
            kill(-child, SIGKILL);
        }
    }
    return 0;
}
