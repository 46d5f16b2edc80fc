//! Raw frames through AF_PACKET.
