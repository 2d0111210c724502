/* Asks who echoes datagrams at ADDRESS PORT, before `main`. With -DLIBRARY the library that does so; else the program that
 * is linked with it. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#ifdef LIBRARY
__attribute__((constructor)) static void begin(int count, char **arguments) {
    if (count != 3) return;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[2]))};
    inet_pton(AF_INET, arguments[1], &to.sin_addr);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    char bytes[16] = "";
    if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0 || send(fd, "early", 5, 0) != 5) perror("asking");
    else if (recv(fd, bytes, sizeof bytes - 1, 0) < 0) perror("hearing");
    printf("heard %s\n", bytes);
    fflush(stdout);
    close(fd);
}
int needed(void) { return 0; }
#else
int needed(void);
int main(void) { return needed(); }
#endif
