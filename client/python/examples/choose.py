"""Ask where a prompt would go, and why: python choose.py localhost:9090 MODEL"""

import sys

from kvpilot import Client
from kvpilot.v1.routing_pb2 import BOOKING_DRY_RUN

with Client(sys.argv[1]) as client:
    choice = client.choose(model=sys.argv[2], text="Hello", booking=BOOKING_DRY_RUN, explain=True)
    print(choice.replica_id, choice.response.reason)
    for candidate in choice.response.decision.candidates:
        print(f"  {candidate.replica_id}: {candidate.ttft.ToMilliseconds()} ms {candidate.veto}")
