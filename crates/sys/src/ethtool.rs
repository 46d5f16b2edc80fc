//! What a network device says of itself: driver, queues, offloads, statistics.
