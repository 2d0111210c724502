"""Takes a PUT at a time and writes its body to a file: sink.py PORT FILE. Prints `ready`."""
import http.server
import sys


class Sink(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        left = int(self.headers["Content-Length"])
        if self.headers.get("Expect") == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        with open(sys.argv[2], "wb") as file:
            while left > 0:
                data = self.rfile.read(min(left, 1 << 16))
                if not data:
                    break
                file.write(data)
                left -= len(data)
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()


server = http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Sink)
print("ready", flush=True)
server.serve_forever()
