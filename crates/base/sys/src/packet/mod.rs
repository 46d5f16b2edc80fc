//! Complete frames to and from a network device: `AF_PACKET` and `AF_XDP`; packets that arrive as if from a wire: tun.

pub mod packet_socket;
pub mod tun;
pub mod xsk;
