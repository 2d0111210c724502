/* Put in front of a program of the comparison (`gcc -include`): its calls about sockets are system calls by instruction,
 * past the C library, with the C library's own convention about errno. x86-64. */
#ifndef INLINE_H
#define INLINE_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static inline long inline_call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    if (result >= 0 || result < -4095) return result;
    errno = -result;
    return -1;
}

#define INLINE_(n, a, b, c, d, e, f, ...) \
    inline_call(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define INLINE(...) INLINE_(__VA_ARGS__, 0, 0, 0, 0, 0, 0)

/* Bytes of a signal set, as the kernel has it. */
#define SET 8

/* A function, since its first argument may be a literal with commas. */
static inline int inline_poll(struct pollfd *fds, nfds_t n, int timeout) {
    return INLINE(SYS_poll, fds, n, timeout);
}

static inline int inline_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask) {
    struct timespec left = timeout ? *timeout : (struct timespec){0};
    return INLINE(SYS_ppoll, fds, n, timeout ? &left : NULL, mask, SET);
}

static inline int inline_pselect(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout,
                                 const sigset_t *mask) {
    struct timespec left = timeout ? *timeout : (struct timespec){0};
    long given[2] = {(long)mask, SET};
    return INLINE(SYS_pselect6, n, r, w, e, timeout ? &left : NULL, given);
}

#define read(fd, ...) INLINE(SYS_read, fd, __VA_ARGS__)
#define write(fd, ...) INLINE(SYS_write, fd, __VA_ARGS__)
#define readv(fd, ...) INLINE(SYS_readv, fd, __VA_ARGS__)
#define writev(fd, ...) INLINE(SYS_writev, fd, __VA_ARGS__)
#define recv(fd, ...) INLINE(SYS_recvfrom, fd, __VA_ARGS__)
#define recvfrom(fd, ...) INLINE(SYS_recvfrom, fd, __VA_ARGS__)
#define recvmsg(fd, ...) INLINE(SYS_recvmsg, fd, __VA_ARGS__)
#define recvmmsg(fd, ...) ((int)INLINE(SYS_recvmmsg, fd, __VA_ARGS__))
#define send(fd, ...) INLINE(SYS_sendto, fd, __VA_ARGS__)
#define sendto(fd, ...) INLINE(SYS_sendto, fd, __VA_ARGS__)
#define sendmsg(fd, ...) INLINE(SYS_sendmsg, fd, __VA_ARGS__)
#define sendmmsg(fd, ...) ((int)INLINE(SYS_sendmmsg, fd, __VA_ARGS__))
#define sendfile(to, ...) INLINE(SYS_sendfile, to, __VA_ARGS__)
#define splice(from, ...) INLINE(SYS_splice, from, __VA_ARGS__)
#define socket(family, ...) ((int)INLINE(SYS_socket, family, __VA_ARGS__))
#define bind(fd, ...) ((int)INLINE(SYS_bind, fd, __VA_ARGS__))
#define listen(fd, ...) ((int)INLINE(SYS_listen, fd, __VA_ARGS__))
#define connect(fd, ...) ((int)INLINE(SYS_connect, fd, __VA_ARGS__))
#define accept(fd, ...) ((int)INLINE(SYS_accept, fd, __VA_ARGS__))
#define accept4(fd, ...) ((int)INLINE(SYS_accept4, fd, __VA_ARGS__))
#define shutdown(fd, ...) ((int)INLINE(SYS_shutdown, fd, __VA_ARGS__))
#define getsockname(fd, ...) ((int)INLINE(SYS_getsockname, fd, __VA_ARGS__))
#define getpeername(fd, ...) ((int)INLINE(SYS_getpeername, fd, __VA_ARGS__))
#define getsockopt(fd, ...) ((int)INLINE(SYS_getsockopt, fd, __VA_ARGS__))
#define setsockopt(fd, ...) ((int)INLINE(SYS_setsockopt, fd, __VA_ARGS__))
#define close(fd) ((int)INLINE(SYS_close, fd))
#define dup(fd) ((int)INLINE(SYS_dup, fd))
#define dup2(from, to) ((int)INLINE(SYS_dup2, from, to))
#define dup3(from, ...) ((int)INLINE(SYS_dup3, from, __VA_ARGS__))
#define fcntl(fd, ...) ((int)INLINE(SYS_fcntl, fd, __VA_ARGS__))
#define ioctl(fd, ...) ((int)INLINE(SYS_ioctl, fd, __VA_ARGS__))
#define poll(...) inline_poll(__VA_ARGS__)
#define ppoll(fds, ...) inline_ppoll(fds, __VA_ARGS__)
#define select(n, ...) ((int)INLINE(SYS_select, n, __VA_ARGS__))
#define pselect(n, ...) inline_pselect(n, __VA_ARGS__)
#define epoll_create1(flags) ((int)INLINE(SYS_epoll_create1, flags))
#define epoll_ctl(epfd, ...) ((int)INLINE(SYS_epoll_ctl, epfd, __VA_ARGS__))
#define epoll_wait(epfd, ...) ((int)INLINE(SYS_epoll_wait, epfd, __VA_ARGS__))
#define epoll_pwait(epfd, events, most, timeout, mask) \
    ((int)INLINE(SYS_epoll_pwait, epfd, events, most, timeout, mask, SET))
#define epoll_pwait2(epfd, events, most, timeout, mask) \
    ((int)INLINE(SYS_epoll_pwait2, epfd, events, most, timeout, mask, SET))
#define pthread_sigmask(how, ...) (INLINE(SYS_rt_sigprocmask, how, __VA_ARGS__, SET) < 0 ? errno : 0)
#define sigprocmask(how, ...) ((int)INLINE(SYS_rt_sigprocmask, how, __VA_ARGS__, SET))
#define sigsuspend(mask) ((int)INLINE(SYS_rt_sigsuspend, mask, SET))

#endif
