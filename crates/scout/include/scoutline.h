/* What a program asks of the paths of its sockets: options for setsockopt and getsockopt.
 *
 * A program on paths (`scoutline run`) needs no change; one that knows of them can say more than the administrator's
 * rules can know. What it asks counts for the one socket: for a listening socket, also for the connections that come
 * to it afterwards.
 *
 * Lowering oneself is always allowed. Rising needs a [[permission]] in the daemon's configuration.
 *
 *   errno          when
 *   ENOPROTOOPT    the socket is not on paths: the kernel's socket answered. A TCP socket is from the first such option
 *                  on, or from bind, listen or connect to an address that paths serve; a UDP socket once it is bound or
 *                  connected. Also: an option that this daemon does not know.
 *                  (In a program that was not started by `scoutline run`, some kernels say EOPNOTSUPP.)
 *   EPERM          it would rise, and the daemon's configuration does not allow that
 *   ENOENT         there is no class of this name
 *   EINVAL         the value is out of its range, or too short
 *   ECONNRESET     the daemon is gone
 *
 * Whether something is a rise is judged by the class that the rules give the socket. Before bind or connect that class is
 * not known: then it is judged as if the rules gave nothing but the class for everything else.
 */
#ifndef SCOUTLINE_H
#define SCOUTLINE_H

/* The level. Linux's are below 1000. */
#define SOL_SCOUT 23559

/* char[]: the name of a class, at most SCOUT_CLASS_MAX bytes, with or without a zero behind it; "": as the rules say.
 * getsockopt gives the class of now with a zero behind it. */
#define SO_SCOUT_CLASS 1

/* int: 0 to 63, higher runs first; -1: as the class says. getsockopt gives that of now, -1 in the background. */
#define SO_SCOUT_PRIORITY 2

/* int, 0 or 1: served only when nothing else has work. getsockopt tells whether it is. */
#define SO_BACKGROUND 3

/* int: 1: the threads that serve the socket run at the priority of its path (extended path); 0: they do not; -1: as the
 * class says. getsockopt gives 0 or 1. */
#define SO_SCOUT_EXTEND 4

/* The longest name of a class that can be asked for, in bytes. */
#define SCOUT_CLASS_MAX 32

#endif
