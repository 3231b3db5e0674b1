//! Waiting for several sockets, and being woken by another thread.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Most events of one wait.
const EVENTS_MAX: usize = 256;

/// Readable descriptors by token (epoll(7), level-triggered).
pub struct Poller {
    epoll: Epoll,
    events: Vec<EpollEvent>,
}

impl Poller {
    /// An empty one.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            events: vec![EpollEvent::empty(); EVENTS_MAX],
        })
    }

    /// Watches a descriptor; closing it ends that.
    ///
    /// # Errors
    /// It is watched already.
    pub fn add(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        Ok(self
            .epoll
            .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))?)
    }

    /// Waits, at most for `limit`; returns how many are ready, errors included.
    ///
    /// # Errors
    /// Only a closed epoll descriptor.
    pub fn wait(&mut self, limit: Option<Duration>) -> io::Result<usize> {
        let timeout = limit.map_or(EpollTimeout::NONE, |limit| {
            // Rounded up: a wait that ends too early would only be begun again.
            let ms = limit.as_micros().div_ceil(1_000);
            EpollTimeout::from(u16::try_from(ms).unwrap_or(u16::MAX))
        });
        match self.epoll.wait(&mut self.events, timeout) {
            Ok(count) => Ok(count),
            Err(nix::errno::Errno::EINTR) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Token of one ready descriptor of the last wait.
    pub fn token(&self, index: usize) -> u64 {
        self.events.get(index).map_or(u64::MAX, EpollEvent::data)
    }
}

/// Wakes a [`Poller`] from another thread (eventfd(2)). Cheap to clone.
#[derive(Clone)]
pub struct Wake(Arc<EventFd>);

impl Wake {
    /// A new one.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self(Arc::new(EventFd::from_value_and_flags(0, flags)?)))
    }

    /// Wakes.
    pub fn notify(&self) {
        // The counter can only be full when the other side was woken and has not looked yet.
        let _ = self.0.write(1);
    }

    /// Takes the notification; a later one wakes again.
    pub fn clear(&self) {
        let _ = self.0.read();
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
