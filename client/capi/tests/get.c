/* Gets a page some times with one connector, and prints for each connection: bytes in the SYN, early data. */
#include <sealaneconnect.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **arguments) {
    if (count != 7) {
        fprintf(stderr, "usage: get CA.pem ADDRESS PORT NAME FLAGS TIMES\n");
        return 2;
    }
    const char *address = arguments[2], *name = arguments[4];
    uint16_t port = (uint16_t)atoi(arguments[3]);
    char error[256];
    sealane_connector *connector =
        sealane_connector_new(arguments[1], (unsigned)atoi(arguments[5]), error, sizeof error);
    if (!connector) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    char request[512];
    snprintf(request, sizeof request, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", name);
    for (int i = atoi(arguments[6]); i > 0; i--) {
        sealane_stream *stream =
            sealane_connect_tls(connector, address, port, name, request, strlen(request), error, sizeof error);
        if (!stream) {
            fprintf(stderr, "%s\n", error);
            sealane_connector_free(connector);
            return 1;
        }
        char response[1024];
        size_t length = 0;
        ssize_t n;
        while ((n = sealane_read(stream, response + length, sizeof response - 1 - length)) > 0)
            length += (size_t)n;
        response[length] = 0;
        if (n < 0 || strncmp(response, "HTTP/1.1 200 ", 13) != 0 || sealane_fd(stream) < 0) {
            fprintf(stderr, "read: %zd, response: %s\n", n, response);
            return 1;
        }
        printf("%zu %d\n", sealane_bytes_in_syn(stream), sealane_early_data(stream));
        sealane_stream_free(stream);
    }
    sealane_connector_free(connector);
    return 0;
}
