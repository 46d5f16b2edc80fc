//! Devices that are given to pktgen, and always taken back.
//!
//! pktgen cannot remove a single device, only all devices of a thread. A thread that has devices of others is therefore not used.

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use fathom_model::units::Nanos;
use fathom_sys::{clock, netlink::namespace::NetNs};

use super::{
    directory::{CONTROL, PktgenDir, thread_file},
    error::Error,
    setting::{ChangedSetting, PktgenSetting},
    status::Status,
};

/// The pktgen of one namespace with our devices. Dropping it removes them.
#[derive(Debug)]
pub struct PktgenSession {
    root: PktgenDir,
    /// Start and stop apply to the namespace of the caller, wherever the file is.
    namespace: NetNs,
    devices: Vec<Device>,
}

#[derive(Debug)]
struct Device {
    name: String,
    thread: usize,
    settings: Vec<PktgenSetting>,
}

/// The time between two checks of a run: short enough that an interval of 100 ms is exact to 2 %.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// A stop takes effect at the next packet, and pktgen notices it within a tenth of a second. Loaded machines take longer.
const STOPS_WITHIN: Nanos = Nanos::from_secs(5);
/// pktgen threads release devices within an eighth of a second.
const GIVES_BACK_WITHIN: Nanos = Nanos::from_secs(5);

const FIX_ADD: &str = "name an Ethernet device of this network namespace that is up, with another @TAG for each thread";
const FIX_RUN: &str = "stop the running pktgen first: echo stop > /proc/net/pktgen/pgctrl";
const FIX_GIVE_BACK: &str = "echo reset > /proc/net/pktgen/pgctrl";

impl PktgenSession {
    /// Claims pktgen, which must be free: a start applies to all devices of the namespace.
    ///
    /// The namespace is that of the calling thread, wherever the session is used later.
    ///
    /// # Errors
    /// If there is no pktgen, or if it already has devices.
    pub fn claim(root: &PktgenDir) -> Result<Self, Error> {
        root.version()?;
        for thread in root.threads()? {
            let devices: Vec<&str> = thread.devices().collect();
            if !devices.is_empty() {
                return Err(Error::Occupied { thread: thread.number, devices: devices.join(" ") });
            }
        }
        let namespace = NetNs::current().map_err(namespace_error)?;
        Ok(Self { root: root.pin_namespace()?, namespace, devices: Vec::new() })
    }

    /// Adds a device to the thread of a processor; `name` may have a tag, as in `eth1@0`.
    ///
    /// # Errors
    /// If there is no such thread or device, or if the device is down.
    pub fn add(&mut self, thread: usize, name: &str) -> Result<(), Error> {
        let n_threads = self.root.threads()?.len();
        if thread >= n_threads {
            return Err(Error::NoThread { thread, n_threads });
        }
        // Recorded before the request, so that it is removed even if the answer is not understood.
        self.devices.push(Device { name: name.to_owned(), thread, settings: Vec::new() });
        self.root.command((&thread_file(thread), &format!("add_device {name}")), FIX_ADD)
    }

    /// Sets a parameter of a device.
    ///
    /// # Errors
    /// If pktgen refuses it.
    pub fn set(&mut self, device: &str, setting: &PktgenSetting) -> Result<(), Error> {
        self.root.set(device, setting)?;
        if let Some(ours) = self.devices.iter_mut().find(|ours| ours.name == device) {
            ours.settings.push(setting.clone());
        }
        Ok(())
    }

    /// Returns the settings that pktgen accepted and stored with another value. It adjusts queues only at the start, so call this
    /// again after a run.
    ///
    /// # Errors
    /// If a device is gone.
    pub fn changes(&self) -> Result<Vec<ChangedSetting>, Error> {
        let of_device = |device: &Device| self.root.changes(&device.name, &device.settings);
        Ok(self.devices.iter().map(of_device).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// Returns the status of a device.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn status(&self, device: &str) -> Result<Status, Error> {
        self.root.status(device)
    }

    /// Runs until every count is reached, or until `is_over` returns true.
    ///
    /// `is_over` is called five hundred times a second.
    ///
    /// # Errors
    /// If the run cannot be started, or does not stop.
    pub fn run(&self, mut is_over: impl FnMut() -> bool) -> Result<(), Error> {
        let (root, (done, ended)) = (self.root.clone(), mpsc::sync_channel(1));
        let namespace = self.namespace.try_clone().map_err(namespace_error)?;
        // The write returns once all devices have finished.
        let start = move || {
            let outcome = control(&root, &namespace, "start");
            // The receiver is gone if the run was given up.
            let _ = done.send(outcome);
        };
        let spawned = thread::Builder::new().name("pktgen".to_owned()).spawn(start);
        spawned.map_err(|cause| Error::File { what: "start a thread for pktgen".to_owned(), cause })?;
        let mut told_at = None;
        loop {
            match ended.recv_timeout(POLL_INTERVAL) {
                Ok(outcome) => return outcome,
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Runaway(Nanos::ZERO)),
                Err(RecvTimeoutError::Timeout) => {}
            }
            match told_at {
                None if is_over() => {
                    told_at = Some(clock::now());
                    control(&self.root, &self.namespace, "stop")?;
                }
                Some(at) if clock::now() - at > STOPS_WITHIN => return Err(Error::Runaway(STOPS_WITHIN)),
                _ => {}
            }
        }
    }

    /// Removes all devices.
    ///
    /// # Errors
    /// If pktgen keeps one.
    pub fn release(mut self) -> Result<(), Error> {
        self.remove_devices()
    }

    fn remove_devices(&mut self) -> Result<(), Error> {
        let devices = std::mem::take(&mut self.devices);
        let mut threads: Vec<usize> = devices.iter().map(|device| device.thread).collect();
        threads.sort_unstable();
        threads.dedup();
        let removed =
            threads.iter().map(|thread| self.root.command((&thread_file(*thread), "rem_device_all"), FIX_GIVE_BACK));
        let outcome = removed.collect::<Vec<_>>().into_iter().collect();
        // The thread removes them from its list a little later.
        let deadline = clock::now() + GIVES_BACK_WITHIN;
        while devices.iter().any(|device| self.root.has(&device.name)) {
            if clock::now() > deadline {
                return Err(Error::Runaway(GIVES_BACK_WITHIN));
            }
            clock::sleep_until(clock::now() + Nanos::from_millis(5));
        }
        outcome
    }
}

fn control(root: &PktgenDir, namespace: &NetNs, word: &str) -> Result<(), Error> {
    namespace.enter_with(|| root.command((CONTROL, word), FIX_RUN)).map_err(namespace_error)?
}

fn namespace_error(error: fathom_sys::Error) -> Error {
    Error::File { what: format!("enter the network namespace of pktgen ({})", error.call), cause: error.source }
}

impl Drop for PktgenSession {
    fn drop(&mut self) {
        // Callers that need the error use `release`.
        let _ = self.remove_devices();
    }
}
