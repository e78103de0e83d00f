//! What needs several rooms: Redis, a real API server, a real node.
