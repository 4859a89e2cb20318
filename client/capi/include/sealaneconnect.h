/* TLS connections whose ClientHello is in the TCP SYN, for programs in C (docs/explanation/syn-tls.md).
 *
 * All functions block. A connector may be used by several threads at the same time; a stream by one thread at a time.
 * Before version 1.0, functions may change: build the program with the header of its library.
 */
#ifndef SEALANECONNECT_H
#define SEALANECONNECT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Session tickets, and what was learnt of networks. Use one connector for all connections. */
typedef struct sealane_connector sealane_connector;

/* One TLS connection. */
typedef struct sealane_stream sealane_stream;

/* Send data in the SYN without a cookie of an earlier connection: only to servers with syn_tls = "open". */
#define SEALANE_NO_COOKIE 1u
/* Never send data in the SYN. */
#define SEALANE_AFTER_TCP 2u

/* Creates a connector that trusts the authorities in this PEM file. Returns NULL on an error, with a message in `error`
 * (`error_size` bytes, with the zero byte); `error` may be NULL. */
sealane_connector *sealane_connector_new(const char *ca_file, unsigned flags, char *error, size_t error_size);

/* Frees a connector. Its streams may still be used. NULL is allowed. */
void sealane_connector_free(sealane_connector *connector);

/* Connects to a TLS server within 10 seconds. `name` is checked against the certificate. `address` is an IP address or a
 * host name; NULL: the name. The bytes `first` are sent first, as early data if a ticket allows it, so they must be safe to
 * repeat (a GET, never a POST); `first_size` may be 0. Returns NULL on an error, with a message in `error`. */
sealane_stream *sealane_connect_tls(const sealane_connector *connector, const char *address, uint16_t port,
                                    const char *name, const void *first, size_t first_size, char *error,
                                    size_t error_size);

/* Reads at most `size` bytes. Returns their number, 0 at the end of the stream, or a negative number of errno.h. */
ssize_t sealane_read(sealane_stream *stream, void *buffer, size_t size);

/* Writes all bytes. Returns `size`, or a negative number of errno.h. */
ssize_t sealane_write(sealane_stream *stream, const void *data, size_t size);

/* Tells the server that nothing more will be sent. Returns 0, or a negative number of errno.h. */
int sealane_finish(sealane_stream *stream);

/* The socket, to set timeouts (SO_RCVTIMEO, SO_SNDTIMEO). It belongs to the stream: do not read, write or close it. */
int sealane_fd(const sealane_stream *stream);

/* How many bytes the server accepted in the SYN; 0 if the connection was made without data in the SYN. */
size_t sealane_bytes_in_syn(const sealane_stream *stream);

/* 0: `first` was empty. 1: the server accepted it as early data. 2: the server rejected the early data, and it was sent
 * again after the handshake. 3: it was sent after the handshake. */
int sealane_early_data(const sealane_stream *stream);

/* Closes and frees a stream. NULL is allowed. */
void sealane_stream_free(sealane_stream *stream);

#ifdef __cplusplus
}
#endif

#endif
