"""ZooKeeper: its raw nodes, for everything that needs them.

``client`` has one session and its nodes. ``calls`` give each request a deadline and an outcome,
``signs`` show that the session lives, ``connection`` has what is known of kazoo, whose thread
reports to the event loop in bursts. ``nodes`` are the values, operations and errors of ZooKeeper,
``address`` its URLs. ``lasting`` has one session after the other.

Nothing here waits without a limit. A write whose answer is lost is not a failed write. No watch
survives a lost connection: who watches must look again when the client says so.
"""
