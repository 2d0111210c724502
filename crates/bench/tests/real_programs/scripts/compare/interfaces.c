/* What the interface that carries paths is to programs: its number, name, flags, MTU and address, by ioctl (netdevice(7))
 * on whatever socket, and by the C library. */
#include "compare.h"
#include <netdb.h>
#include <net/if.h>

static int started(const char *role) {
    return role == NULL;
}

static struct ifreq request(const char *name) {
    struct ifreq request;
    memset(&request, 0x55, sizeof request);
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    return request;
}

static void tell_address(const char *what, struct ifreq *request) {
    struct sockaddr_in *address = (void *)&request->ifr_addr;
    char text[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &address->sin_addr, text, sizeof text);
    out("%s %s: family %d port %d %s", what, request->ifr_name, address->sin_family, address->sin_port, text);
}

/* Of a socket in some state, what is asked by name. */
static void ask(int fd) {
    struct ifreq eth = request("eth0"), nobody = request("nosuch0"), alias = request("eth0:1");
    if (T(ioctl(fd, SIOCGIFADDR, &eth)) == 0) tell_address("address", &eth);
    eth = request("eth0");
    if (T(ioctl(fd, SIOCGIFNETMASK, &eth)) == 0) tell_address("mask", &eth);
    eth = request("eth0");
    if (T(ioctl(fd, SIOCGIFDSTADDR, &eth)) == 0) tell_address("other end", &eth);
    eth = request("eth0");
    T(ioctl(fd, SIOCGIFBRDADDR, &eth));
    T(ioctl(fd, SIOCGIFADDR, &nobody));
    T(ioctl(fd, SIOCGIFADDR, &alias));
    T(ioctl(fd, SIOCGIFADDR, NULL));
    T(ioctl(fd, SIOCGIFCONF, NULL));
    eth = request("eth0");
    T(ioctl(fd, SIOCGIFINDEX, &eth));
    T(eth.ifr_ifindex == (int)if_nametoindex("eth0"));
    memset(eth.ifr_name, 0, sizeof eth.ifr_name);
    T(ioctl(fd, SIOCGIFNAME, &eth));
    T(strcmp(eth.ifr_name, "eth0"));
    T(ioctl(fd, SIOCGIFFLAGS, &eth));
    T(eth.ifr_flags & (IFF_UP | IFF_RUNNING | IFF_BROADCAST | IFF_MULTICAST | IFF_LOOPBACK));
    T(ioctl(fd, SIOCGIFMTU, &eth));
    T(eth.ifr_mtu);
    T(ioctl(fd, SIOCGIFHWADDR, &eth));
    T(eth.ifr_hwaddr.sa_family);
}

CASE(of_a_fresh_stream) {
    ask(T(socket(family, SOCK_STREAM, 0)));
}

CASE(of_fresh_datagrams) {
    ask(T(socket(family, SOCK_DGRAM, 0)));
}

CASE(of_a_local_socket) {
    ask(T(socket(AF_UNIX, SOCK_STREAM, 0)));
}

CASE(of_a_connection) {
    ask(accepted("A"));
}

CASE(of_bound_datagrams) {
    int fd = socket(family, SOCK_DGRAM, 0);
    struct name at = name_of(own, 0);
    NEED(bind(fd, ADDRESS(at)) == 0);
    ask(fd);
}

CASE(lists) {
    int fd = T(socket(family, SOCK_DGRAM, 0));
    struct ifreq list[64];
    struct ifconf all = {.ifc_len = 0, .ifc_buf = NULL};
    T(ioctl(fd, SIOCGIFCONF, &all));
    int needed = T(all.ifc_len);
    for (int room = needed + 41; room >= -1; room -= 20) {
        memset(list, 0, sizeof list);
        struct ifconf some = {.ifc_len = room, .ifc_req = list};
        T(ioctl(fd, SIOCGIFCONF, &some));
        T(some.ifc_len);
        for (int at = 0; at < some.ifc_len / (int)sizeof *list; at++) tell_address("listed", &list[at]);
        T(list[some.ifc_len / (int)sizeof *list].ifr_name[0]);
    }
    struct ifconf nowhere = {.ifc_len = sizeof list, .ifc_buf = (void *)8};
    T(ioctl(fd, SIOCGIFCONF, &nowhere));
}

/* Names are looked for in the families of which the machine has addresses. */
CASE(families_that_are_configured) {
    const char *hosts[] = {peer, over_inet6 ? "2001:db8::5" : "192.0.2.5", over_inet6 ? "fe80::5" : "127.0.0.5"};
    for (int host = 0; host < 3; host++)
        for (int asked = 0; asked < 4; asked++) {
            struct addrinfo hints = {.ai_flags = AI_ADDRCONFIG, .ai_family = (int[]){AF_UNSPEC, AF_INET, AF_INET6, 0}[asked],
                                     .ai_socktype = SOCK_STREAM}, *list = NULL;
            const char *name = hosts[host] + 7 * !strncmp(hosts[host], "::ffff:", 7);
            int error = getaddrinfo(name, "80", asked == 3 ? NULL : &hints, &list);
            out("%s, family %d: %d, %d", host ? name : "the peer", hints.ai_family, error, list ? list->ai_family : -1);
            if (list) freeaddrinfo(list);
        }
}
