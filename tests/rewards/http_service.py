"""An HTTP service that answers as a test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, bytes]
Question = dict[str, Any]


@dataclass
class Seen:
    """What the service was asked."""

    url: str
    questions: list[Question] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


def answer(value: Any, status: int = 200) -> Answer:
    return status, json.dumps(value).encode()


@contextmanager
def service(respond: Callable[[Question], Answer]) -> Iterator[Seen]:
    """On loopback, for as long as the block lasts; each question in a thread of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.questions.append(question)
            seen.headers.append({name.lower(): value for name, value in self.headers.items()})
            seen.paths.append(self.path)
            status, body = respond(question)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        seen = Seen(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield seen
        finally:
            server.shutdown()
            thread.join()
