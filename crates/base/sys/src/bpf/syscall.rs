//! The system call behind this module, bpf(2), and the attributes of its commands.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
};

/// The attributes of one command, in the layout of `union bpf_attr` in `linux/bpf.h`.
///
/// # Safety
/// The type has that layout and no padding, and its pointers are valid for the command's use of them.
pub(super) unsafe trait Attributes {
    /// The number of the command.
    const COMMAND: libc::c_int;
}

macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident = $command:literal { $($field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Default)]
        pub(super) struct $name { $(pub(super) $field: $kind,)* }
        // SAFETY: the fields follow linux/bpf.h; they are 4 or 8 bytes, those of 8 at multiples of 8, so nothing is padded.
        unsafe impl Attributes for $name { const COMMAND: libc::c_int = $command; }
    )*};
}

attributes! {
    MapCreate = 0 {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        map_flags: u32,
        inner_map_fd: u32,
        numa_node: u32,
        map_name: [u8; 16],
    }
    MapLookup = 1 { map_fd: u32, reserved: u32, key: u64, value: u64, flags: u64, }
    MapUpdate = 2 { map_fd: u32, reserved: u32, key: u64, value: u64, flags: u64, }
    MapNextKey = 4 { map_fd: u32, reserved: u32, key: u64, next_key: u64, }
    ProgramLoad = 5 {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
        kern_version: u32,
        prog_flags: u32,
        prog_name: [u8; 16],
        prog_ifindex: u32,
        expected_attach_type: u32,
    }
    ObjectGet = 7 { pathname: u64, bpf_fd: u32, file_flags: u32, }
    ProgramTestRun = 10 {
        prog_fd: u32,
        retval: u32,
        data_size_in: u32,
        data_size_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
        ctx_size_in: u32,
        ctx_size_out: u32,
        ctx_in: u64,
        ctx_out: u64,
        flags: u32,
        cpu: u32,
        batch_size: u32,
        reserved: u32,
    }
    NextMapId = 12 { start_id: u32, next_id: u32, open_flags: u32, }
    ProgramById = 13 { prog_id: u32, next_id: u32, open_flags: u32, }
    MapById = 14 { map_id: u32, next_id: u32, open_flags: u32, }
    MapInfoOf = 15 { map_fd: u32, length: u32, info: u64, }
    MapUpdateBatch = 26 {
        in_batch: u64,
        out_batch: u64,
        keys: u64,
        values: u64,
        count: u32,
        map_fd: u32,
        elem_flags: u64,
        flags: u64,
    }
    LinkCreate = 28 { prog_fd: u32, target_ifindex: u32, attach_type: u32, flags: u32, }
}

/// Runs one command; the meaning of the returned value depends on the command.
pub(super) fn bpf<A: Attributes>(attributes: &mut A) -> io::Result<libc::c_int> {
    // SAFETY: the attributes are valid for reading and writing during the call, and `Attributes` promises their layout.
    let result = unsafe { libc::syscall(libc::SYS_bpf, A::COMMAND, &raw mut *attributes, size_of::<A>()) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(libc::c_int::try_from(result).unwrap_or(libc::c_int::MAX))
    }
}

/// Runs a command that creates an object and returns its descriptor.
pub(super) fn bpf_fd(attributes: &mut impl Attributes) -> io::Result<OwnedFd> {
    let fd = bpf(attributes)?;
    // SAFETY: the kernel has just created this descriptor for us, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The name in the kernel's format: 15 letters, digits, dots or underscores; other characters become underscores.
pub(super) fn object_name(name: &str) -> [u8; 16] {
    let mut field = [0; 16];
    for (to, from) in field.iter_mut().zip(name.bytes().take(15)) {
        *to = if from.is_ascii_alphanumeric() || from == b'.' { from } else { b'_' };
    }
    field
}

/// A size in the kernel's type.
pub(super) fn size(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("what is handed to bpf(2) is far smaller than 4 GiB")
}

/// A descriptor in the attributes' type; the caller keeps it open until the command has run.
pub(super) fn descriptor(object: &impl AsFd) -> u32 {
    u32::try_from(object.as_fd().as_raw_fd()).expect("an open descriptor is not negative")
}

/// The address of memory that the kernel reads or writes during a command.
pub(super) fn address<T: ?Sized>(pointer: *const T) -> u64 {
    pointer.cast::<u8>().expose_provenance() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_and_cleaned_to_what_the_kernel_takes() {
        assert_eq!(object_name("fathom sink of frames"), *b"fathom_sink_of_\0");
        assert_eq!(object_name("sink"), *b"sink\0\0\0\0\0\0\0\0\0\0\0\0");
    }

    #[test]
    fn attributes_are_as_long_as_their_last_field_in_the_header_of_the_kernel() {
        assert_eq!(size_of::<MapCreate>(), 44);
        assert_eq!(size_of::<MapLookup>(), 32);
        assert_eq!(size_of::<ProgramLoad>(), 72);
        assert_eq!(size_of::<ProgramTestRun>(), 80);
        assert_eq!(size_of::<MapUpdateBatch>(), 56);
        assert_eq!(size_of::<LinkCreate>(), 16);
    }
}
