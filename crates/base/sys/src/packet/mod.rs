//! Complete frames to and from a network device: `AF_PACKET` and `AF_XDP`.

pub mod packet_socket;
pub mod xsk;
