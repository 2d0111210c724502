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
 *   ENOBUFS        the class or its policy cannot carry it: what it has to promise of the engine, its memory or its
 *                  number of connections is used up. All stays as it was
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

/* Where the path stands in the schedule: a priority, a deadline or a weight. What was asked for last counts; -1 for that
 * option puts it back to what the class says. SO_BACKGROUND goes before all of them. */

/* int: 0 to 63, higher runs first; -1: as the class says. getsockopt gives that of now, -1 in the background. */
#define SO_SCOUT_PRIORITY 2

/* int: in how many microseconds what comes should be done, 100 to 60000000; -1: as the class says. Policy edf, or bert
 * where the class has a deadline there; in a class that has one, a later one is a lowering. getsockopt: -1: none. */
#define SO_SCOUT_DEADLINE 5

/* int: the weight among the paths of its class of policy wfq, of which each has the number that is the class's weight, 1 to
 * 10000; -1: as the class says. Less is a lowering. In a class of another policy: among the classes of wfq.
 * getsockopt: -1: none. */
#define SO_SCOUT_WEIGHT 6

/* int, 0 or 1: served only when nothing else has work. getsockopt tells whether it is. */
#define SO_BACKGROUND 3

/* int: 1: the threads that serve the socket run at the priority of its path (extended path); 0: they do not; -1: as the
 * class says. getsockopt gives 0 or 1. */
#define SO_SCOUT_EXTEND 4

/* The longest name of a class that can be asked for, in bytes. */
#define SCOUT_CLASS_MAX 32

#endif
