/* Calls by instruction (inline.h) among threads, signals and processes, and those that a handler in between could spoil:
 * signal masks, stacks, the program's own SIGSYS, clone and fork, the end of a handler. */
#include "compare.h"
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <netdb.h>
#include <sched.h>
#include <setjmp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <ucontext.h>

static int started(const char *role) {
    int fd = atoi(role);
    case_name = "image";
    if (!strcmp(role, "said")) {
        sigset_t now;
        struct sigaction action;
        T((sigprocmask)(SIG_BLOCK, NULL, &now));
        T(sigismember(&now, SIGSYS));
        T(sigaction(SIGSYS, NULL, &action));
        T(action.sa_handler == SIG_IGN);
        T(action.sa_handler == SIG_DFL);
        return 0;
    }
    T(write(fd, "image", 5));
    return 0;
}

static int fd;
static char bytes[64];

/* There and back. */
static void exchange(const char *name) {
    T(write(fd, "abc", 3));
    tell("read %s 3", name);
    tell("send %s de", name);
    T(recv(fd, bytes, 2, MSG_WAITALL));
    out("%.2s", bytes);
}

static void *in_thread(void *name) {
    sigset_t all, now;
    sigfillset(&all);
    T(pthread_sigmask(SIG_BLOCK, &all, NULL));
    exchange(name);
    sigemptyset(&now);
    T(pthread_sigmask(SIG_BLOCK, NULL, &now));
    T(sigismember(&now, SIGSYS));
    T(sigismember(&now, SIGUSR1));
    return NULL;
}

CASE(a_thread_that_blocks_all_signals) {
    fd = connected("A");
    pthread_t thread;
    pthread_create(&thread, NULL, in_thread, "A");
    pthread_join(thread, NULL);
    /* By the C library's functions. */
    sigset_t all, now;
    sigfillset(&all);
    T((pthread_sigmask)(SIG_SETMASK, &all, NULL));
    T((sigprocmask)(SIG_BLOCK, NULL, &now));
    T(sigismember(&now, SIGSYS));
    exchange("A");
    sigdelset(&all, SIGSYS);
    T((sigprocmask)(SIG_SETMASK, &all, &now));
    T(sigismember(&now, SIGSYS));
    T((sigprocmask)(SIG_SETMASK, NULL, &now));
    T(sigismember(&now, SIGSYS));
    T(sigprocmask(77, &all, NULL));
    T((int)INLINE(SYS_rt_sigprocmask, SIG_BLOCK, &all, NULL, 4));
}

static volatile sig_atomic_t handled;

static void exchanging(int number) {
    handled = number;
    exchange("A");
}

CASE(a_handler_that_blocks_all_signals) {
    fd = connected("A");
    struct sigaction action = {.sa_handler = exchanging}, before;
    sigfillset(&action.sa_mask);
    T(sigaction(SIGUSR1, &action, NULL));
    T(sigaction(SIGUSR1, NULL, &before));
    T(sigismember(&before.sa_mask, SIGSYS));
    raise(SIGUSR1);
    out("handled %d", handled);
    /* And in a wait with a mask of its own. */
    sigset_t usual, waiting;
    sigemptyset(&usual);
    sigaddset(&usual, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usual, NULL);
    handled = 0;
    raise(SIGUSR1);
    sigfillset(&waiting);
    sigdelset(&waiting, SIGUSR1);
    T(sigsuspend(&waiting));
    out("handled %d", handled);
    handled = 0;
    raise(SIGUSR1);
    struct pollfd one = {fd, POLLIN, 0};
    T(ppoll(&one, 1, NULL, &waiting));
    out("handled %d", handled);
}

static void on_system_call(int number, siginfo_t *info, void *context) {
    ucontext_t *interrupted = context;
    out("signal %d code %d call %d", number, info->si_code, info->si_syscall);
    exchange("A");
    if (info->si_code > 0) interrupted->uc_mcontext.gregs[REG_RAX] = 4711;
}

/* getpgid is trapped by a filter. */
static void filter(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpgid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, steps};
    T(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    T(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

CASE(its_own_handler_of_sigsys) {
    fd = connected("A");
    struct sigaction action = {.sa_sigaction = on_system_call, .sa_flags = SA_SIGINFO | SA_NODEFER}, before;
    T(sigaction(SIGSYS, &action, &before));
    T(before.sa_handler == SIG_DFL);
    filter();
    T(getpgid(0));
    T((int)INLINE(SYS_getpgid, 0));
    T(kill(getpid(), SIGSYS));
    T(sigaction(SIGSYS, NULL, &before));
    T(before.sa_sigaction == on_system_call);
    T(before.sa_flags & (SA_SIGINFO | SA_NODEFER | SA_RESTART));
    T(signal(SIGSYS, SIG_IGN) == (void *)on_system_call);
    T(kill(getpid(), SIGSYS));
    T(signal(SIGSYS, SIG_DFL) == SIG_IGN);
    exchange("A");
}

CASE(no_handler_of_sigsys) {
    fd = connected("A");
    pid_t child = fork();
    if (child == 0) {
        filter();
        INLINE(SYS_getpgid, 0);
        _exit(1);
    }
    int status;
    T(waitpid(child, &status, 0) == child);
    out("ended by %d", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    child = fork();
    if (child == 0) {
        signal(SIGSYS, SIG_IGN);
        filter();
        getpgid(0);
        _exit(1);
    }
    T(waitpid(child, &status, 0) == child);
    out("ended by %d", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static char room[256 << 10];

static void tell_stack(const char *where) {
    char here;
    stack_t now = {0};
    T((int)INLINE(SYS_sigaltstack, NULL, &now));
    out("%s: on it %d, flags %x", where, &here > room && &here < room + sizeof room, now.ss_flags);
}

static void within(int number) { tell_stack(number == SIGUSR1 ? "within" : "?"); }

static void on_another_stack(int number, siginfo_t *info, void *context) {
    out("signal %d code %d with a context %d", number, info->si_code, context != NULL);
    tell_stack("in the handler");
    raise(SIGUSR1);
    exchange("A");
}

CASE(its_own_handler_on_another_stack) {
    fd = connected("A");
    struct sigaction action = {.sa_sigaction = on_another_stack, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    struct sigaction other = {.sa_handler = within};
    sigaction(SIGUSR1, &other, NULL);
    T(sigaction(SIGSYS, &action, NULL));
    T(kill(getpid(), SIGSYS));
    stack_t given = {.ss_sp = room, .ss_size = sizeof room};
    T(sigaltstack(&given, NULL));
    T(kill(getpid(), SIGSYS));
    tell_stack("behind it");
    other.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR1, &other, NULL);
    T(kill(getpid(), SIGSYS));
    given.ss_flags = 1 << 31; /* SS_AUTODISARM */
    T(sigaltstack(&given, NULL));
    T(kill(getpid(), SIGSYS));
    tell_stack("behind it");
    action.sa_flags = SA_SIGINFO;
    T(sigaction(SIGSYS, &action, NULL));
    T(kill(getpid(), SIGSYS));
}

static ucontext_t here, there;

static void in_a_context(void) {
    sigset_t now;
    T(pthread_sigmask(SIG_BLOCK, NULL, &now));
    T(sigismember(&now, SIGSYS));
    T(sigismember(&now, SIGUSR1));
    exchange("A");
    T(swapcontext(&there, &here));
    exchange("A");
}

/* Contexts with a mask of their own. */
CASE(contexts) {
    fd = connected("A");
    sigset_t now;
    T(getcontext(&there));
    there.uc_stack = (stack_t){.ss_sp = room, .ss_size = sizeof room};
    there.uc_link = &here;
    sigfillset(&there.uc_sigmask);
    makecontext(&there, in_a_context, 0);
    T(swapcontext(&here, &there));
    T(pthread_sigmask(SIG_BLOCK, NULL, &now));
    T(sigismember(&now, SIGSYS));
    T(sigismember(&now, SIGUSR1));
    exchange("A");
    sigfillset(&there.uc_sigmask);
    T(swapcontext(&here, &there));
    volatile int times = 0;
    T(getcontext(&here));
    if (times++ < 2) {
        sigfillset(&here.uc_sigmask);
        setcontext(&here);
    }
    out("times %d", times);
    exchange("A");
}

static int asked, not_served;

/* On paths: there is nothing to read. The kernel's own socket behind it would not be connected. */
static void ask(int number) {
    int before = errno;
    char byte;
    asked += number == SIGUSR1;
    if (recv(fd, &byte, 1, MSG_DONTWAIT) != -1 || errno != EAGAIN) not_served++;
    errno = before;
}

/* Signals come while the C library looks up names, at any of its calls. */
CASE(signals_while_names_are_looked_up) {
    fd = connected("A");
    struct sigaction action = {.sa_handler = ask, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct itimerspec times = {{0, 150000}, {0, 150000}};
    timer_t timer;
    NEED(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &times, NULL) == 0);
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
    int failed = 0;
    for (int i = 0; i < 4000 || asked < 1000; i++) {
        if (getaddrinfo("localhost", "80", &hints, &found)) failed++;
        else freeaddrinfo(found);
    }
    NEED(timer_delete(timer) == 0);
    out("failed %d, not served %d", failed, not_served);
    exchange("A");
}

CASE(what_is_said_of_sigsys_goes_on) {
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGSYS);
    char *arguments[] = {(char *)program, "started", "said", NULL};
    extern char **environ;
    int status;
    pid_t child;
    fd = connected("A");
    for (int said = 0; said < 4; said++) {
        T((sigprocmask)(said & 1 ? SIG_BLOCK : SIG_UNBLOCK, &blocked, NULL));
        signal(SIGSYS, said & 2 ? SIG_IGN : SIG_DFL);
        child = fork();
        if (child == 0) {
            execv("/nowhere", arguments);
            execv(program, arguments);
            _exit(9);
        }
        T(waitpid(child, &status, 0) == child);
        out("status %x", status);
        T(posix_spawn(&child, program, NULL, NULL, arguments, environ));
        T(waitpid(child, &status, 0) == child);
        out("status %x", status);
        T(execv("/nowhere", arguments));
        exchange("A");
    }
}

static long call_of_32_bits(long number, int first, int second) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(first), "c"(second) : "r8", "r9", "r10", "r11", "memory");
    return (int)result;
}

/* getpid, kill, close, read. */
CASE(calls_of_32_bits) {
    fd = connected("A");
    T(call_of_32_bits(20, 0, 0) == getpid());
    exchange("A");
    T(call_of_32_bits(37, getpid(), 0));
    T(call_of_32_bits(6, 999, 0));
    T(call_of_32_bits(3, 999, 0));
    exchange("A");
}

static int of_parent, of_child;

/* A child, by one of these ways. */
static pid_t child_by(int way) {
    long flags = CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
    struct clone_args arguments = {.exit_signal = SIGCHLD};
    switch (way) {
    case 0: return INLINE(SYS_fork);
    case 1: return INLINE(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    case 2: return INLINE(SYS_clone, flags | SIGCHLD, 0, &of_parent, &of_child, 0);
    case 3: return INLINE(SYS_clone3, &arguments, sizeof arguments);
    case 4:
        arguments.flags = flags;
        arguments.parent_tid = (long)&of_parent;
        arguments.child_tid = (long)&of_child;
        return INLINE(SYS_clone3, &arguments, CLONE_ARGS_SIZE_VER0);
    default: return INLINE(SYS_vfork);
    }
}

CASE(children_by_instruction_have_sockets) {
    fd = connected("A");
    for (int way = 0; way < 6; way++) {
        of_parent = of_child = 0;
        pid_t child = child_by(way);
        if (child == 0) {
            T(write(fd, "child", 5));
            T(close(fd));
            if (way == 2 || way == 4) T(of_child == gettid());
            int other = socket(family, SOCK_STREAM, 0);
            struct name name = name_of(own, 0);
            T(bind(other, ADDRESS(name)));
            T(listen(other, 1));
            INLINE(SYS_exit_group, 7);
        }
        int status;
        T(waitpid(child, &status, 0) == child);
        out("status %x", status);
        if (way == 2 || way == 4) T(of_parent == child);
        tell("read A 5");
        exchange("A");
    }
}

CASE(a_child) {
    fd = connected("A");
    pid_t child = fork();
    if (child == 0) {
        T(write(fd, "child", 5));
        int other = socket(family, SOCK_STREAM, 0);
        struct name name = name_of(own, 0);
        T(bind(other, ADDRESS(name)));
        T(listen(other, 1));
        INLINE(SYS_exit_group, 7);
    }
    int status;
    T(waitpid(child, &status, 0) == child);
    out("status %x", status);
    tell("read A 5");
    exchange("A");
}

CASE(a_new_image) {
    fd = connected("A");
    pid_t child = fork();
    if (child == 0) {
        char number[12];
        snprintf(number, sizeof number, "%d", fd);
        char *arguments[] = {(char *)program, "started", number, NULL};
        extern char **environ;
        INLINE(SYS_execve, program, arguments, environ);
        _exit(9);
    }
    int status;
    T(waitpid(child, &status, 0) == child);
    out("status %x", status);
    tell("read A 5");
    exchange("A");
}

CASE(children_by_instruction) {
    int status;
    pid_t child = INLINE(SYS_fork);
    if (child == 0) INLINE(SYS_exit_group, 3);
    T(waitpid(child, &status, 0) == child);
    out("status %x", status);
    child = INLINE(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) INLINE(SYS_exit_group, 4);
    T(waitpid(child, &status, 0) == child);
    out("status %x", status);
    struct clone_args arguments = {.exit_signal = SIGCHLD};
    child = INLINE(SYS_clone3, &arguments, sizeof arguments);
    if (child == 0) INLINE(SYS_exit_group, 5);
    T(waitpid(child, &status, 0) == child);
    out("status %x", status);
    child = INLINE(SYS_vfork);
    if (child == 0) INLINE(SYS_exit_group, 6);
    T(waitpid(child, &status, 0) == child);
    out("status %x", status);
}

static int woken;

/* What a thread without a C library does: it writes its argument and ends. */
__attribute__((used)) static void bare(int *place) {
    *place = 4712;
    inline_call(SYS_futex, (long)place, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
    inline_call(SYS_exit, 0, 0, 0, 0, 0, 0);
}

/* clone with CLONE_VM: the child goes on behind the instruction, with the registers of its parent, on its own stack. */
static long bare_thread(long flags, char *stack, int *place) {
    register int *argument __asm__("r12") = place;
    register long r10 __asm__("r10") = 0, r8 __asm__("r8") = 0;
    long result;
    __asm__ volatile(
        "syscall\n"
        "test %%rax, %%rax\n"
        "jnz 1f\n"
        "xor %%ebp, %%ebp\n"
        "mov %%r12, %%rdi\n"
        "call bare\n"
        "ud2\n"
        "1:"
        : "=a"(result)
        : "a"((long)SYS_clone), "D"(flags), "S"(stack), "d"(0L), "r"(r10), "r"(r8), "r"(argument)
        : "rcx", "r11", "memory");
    return result;
}

CASE(a_thread_by_instruction) {
    char *stack = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    T(bare_thread(flags, stack + 65536, &woken) > 0);
    while (__atomic_load_n(&woken, __ATOMIC_SEQ_CST) == 0)
        inline_call(SYS_futex, (long)&woken, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0);
    out("woken %d", woken);
    fd = connected("A");
    exchange("A");
}

/* A handler that the program returns from by itself. */
struct kernel_action {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
};
enum { RESTORER = 0x04000000 };
void restorer(void);
__asm__("restorer: mov $15, %eax\n syscall\n ud2\n");

CASE(a_restorer_of_its_own) {
    fd = connected("A");
    struct kernel_action action = {exchanging, RESTORER | SA_RESTART, restorer, ~0ul}, before = {0};
    T(INLINE(SYS_rt_sigaction, SIGUSR2, &action, NULL, 8));
    T(INLINE(SYS_rt_sigaction, SIGUSR2, NULL, &before, 8));
    out("mask has %d", (before.mask >> (SIGSYS - 1) & 1) != 0);
    T(before.restorer == restorer);
    T(raise(SIGUSR2));
    out("handled %d", handled);
    T(INLINE(SYS_rt_sigaction, SIGSYS, &action, NULL, 8));
    T(raise(SIGSYS));
    out("handled %d", handled);
}

CASE(signal_stacks) {
    stack_t given = {.ss_sp = room, .ss_size = sizeof room}, found = {0};
    T((int)INLINE(SYS_sigaltstack, &given, NULL));
    T(getppid() > 0);
    T((int)INLINE(SYS_sigaltstack, NULL, &found));
    out("%d %d %d", found.ss_sp == room, found.ss_flags, (int)found.ss_size);
    fd = connected("A");
    struct sigaction action = {.sa_handler = exchanging, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    given.ss_flags = SS_DISABLE;
    T((int)INLINE(SYS_sigaltstack, &given, NULL));
    T((int)INLINE(SYS_sigaltstack, NULL, &found));
    out("%d", found.ss_flags);
}

static sigjmp_buf back;
static void jump(int number) { siglongjmp(back, number); }

CASE(jumps_out_of_a_call) {
    fd = connected("A");
    signal(SIGALRM, jump);
    for (volatile int i = 0; i < 3; i++) {
        int by = sigsetjmp(back, 1);
        if (!by) {
            ualarm(30000, 0);
            recv(fd, bytes, 1, 0);
        }
        out("by %d", by);
    }
    alarm(CASE_S);
    exchange("A");
}

static void *cancelled(void *unused) {
    recv(fd, bytes, 1, 0);
    out("the call came back");
    pthread_testcancel();
    return unused;
}

CASE(no_place_to_be_cancelled) {
    fd = connected("A");
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, cancelled, NULL);
    pthread_cancel(thread);
    tell("send A x");
    pthread_join(thread, &result);
    T(result == PTHREAD_CANCELED);
    exchange("A");
}

CASE(errno_stays) {
    fd = connected("A");
    long result;
    errno = 12;
    __asm__ volatile("syscall" : "=a"(result) : "a"((long)SYS_read), "D"(-1L), "S"(bytes), "d"(1L) : "rcx", "r11", "memory");
    out("%ld %d", result, errno);
    nonblock(fd);
    __asm__ volatile("syscall" : "=a"(result) : "a"((long)SYS_read), "D"((long)fd), "S"(bytes), "d"(1L) : "rcx", "r11", "memory");
    out("%ld %d", result, errno);
}
