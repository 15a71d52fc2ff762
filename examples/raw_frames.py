"""The API without our client: one DEALER socket and msgpack maps, as in any language.

python examples/raw_frames.py ~/.local/state/superfluid/run/api.sock smollm2 "Name a river."
"""

import sys

import msgpack
import zmq


def main(path: str, model: str, question: str) -> None:
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.linger = 0
    socket.connect(f"ipc://{path}")
    request = {
        "op": "chat",
        "id": b"1",
        "model": model,
        "max_new": 40,
        "messages": [{"role": "user", "content": question}],
    }
    socket.send_multipart([b"SF1", msgpack.packb(request)])
    while True:
        reply = msgpack.unpackb(socket.recv_multipart()[1])
        if reply["kind"] == "event" and reply["type"] == "token":
            print(reply["text"], end="", flush=True)
        elif reply["kind"] == "error":
            sys.exit(f"{reply['error']['code']}: {reply['error']['message']}")
        elif reply["kind"] == "end":
            print(f"\n{reply['finish']}, {reply['usage']['completion']} tokens")
            break
    socket.close()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python examples/raw_frames.py SOCKET MODEL QUESTION")
    main(*sys.argv[1:])
