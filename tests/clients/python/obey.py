"""obey.py URL NUMBER: sends so many requests, and prints the status of each, or that the client gave up."""

import sys

from obey import GaveUp, Session

with Session() as session:
    for _ in range(int(sys.argv[2])):
        try:
            print(session.get(sys.argv[1]).status, flush=True)
        except GaveUp:
            print("gave up", flush=True)
