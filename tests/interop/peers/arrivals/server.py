"""h11 (the parser of Uvicorn and Hypercorn) on threads, which says in `x-arrived` what has arrived: see `src/differential`.

The argument is the port."""

import hashlib
import json
import socket
import sys
import threading

import h11


def pairs(fields):
    return [[name.hex(), value.hex()] for name, value in fields]


def serve(stream):
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=65536)

    def send(*events):
        stream.sendall(b"".join(connection.send(event) or b"" for event in events))

    request, body = None, []
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                length = [("content-length", "0"), ("connection", "close")]
                send(h11.Response(status_code=error.error_status_hint, headers=length), h11.EndOfMessage())
            return
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                send(h11.InformationalResponse(status_code=100, headers=[]))
            connection.receive_data(stream.recv(65536))
        elif isinstance(event, h11.Request):
            request, body = event, []
        elif isinstance(event, h11.Data):
            body.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            whole = b"".join(body)
            arrived = {
                "method": request.method.hex(),
                "target": request.target.hex(),
                "headers": pairs(request.headers.raw_items()),
                "trailers": pairs(event.headers.raw_items()),
                "length": len(whole),
                "sha256": hashlib.sha256(whole).hexdigest(),
            }
            answer = [value for name, value in request.headers if name == b"x-answer"]
            status = int(answer[0]) if answer else 200
            headers = [("x-arrived", json.dumps(arrived))]
            bare = request.method == b"HEAD" or status in (204, 304)
            if not bare:
                headers.append(("content-length", str(len(whole))))
            response = h11.Response(status_code=status, headers=headers)
            send(response, *([] if bare else [h11.Data(data=whole)]), h11.EndOfMessage())
            if connection.our_state is h11.MUST_CLOSE:
                return
            connection.start_next_cycle()
        elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            return


def run(stream):
    with stream:
        try:
            serve(stream)
        except OSError:
            # The other side has left.
            pass


with socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=128) as listener:
    while True:
        stream, _ = listener.accept()
        threading.Thread(target=run, args=(stream,), daemon=True).start()
