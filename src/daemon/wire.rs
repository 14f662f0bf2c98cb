//! Frames and file descriptors on the control socket.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::proto::{FrameKind, MAX_FRAME};

/// One end of a control connection.
#[derive(Debug)]
pub struct Wire {
    stream: UnixStream,
}

/// A frame received.
#[derive(Debug)]
pub struct Frame {
    /// What it holds.
    pub kind: FrameKind,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// A descriptor that came with it.
    pub fd: Option<OwnedFd>,
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl Wire {
    /// Takes over a connected socket.
    #[must_use]
    pub fn new(stream: UnixStream) -> Wire {
        Wire { stream }
    }

    /// The socket.
    #[must_use]
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Sends a frame, with a descriptor if one is given.
    ///
    /// # Errors
    /// Those of sendmsg(2); `EPIPE` if the peer is gone.
    pub fn send(&mut self, kind: FrameKind, bytes: &[u8], fd: Option<&OwnedFd>) -> io::Result<()> {
        let len = u32::try_from(bytes.len())
            .ok()
            .filter(|l| *l <= MAX_FRAME)
            .ok_or_else(|| bad("frame too long"))?;
        let mut head = len.to_le_bytes().to_vec();
        head.push(kind as u8);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.map(|fd| [fd.as_fd()]);
        if let Some(fds) = &fds {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        // The head is short and fits the socket's buffer in one piece.
        let sent =
            sendmsg(&self.stream, &[IoSlice::new(&head)], &mut control, SendFlags::NOSIGNAL)?;
        self.stream.write_all(&head[sent..])?;
        self.stream.write_all(bytes)
    }

    /// Sends a value as JSON.
    ///
    /// # Errors
    /// As [`Wire::send`].
    pub fn send_json(&mut self, value: &impl Serialize, fd: Option<&OwnedFd>) -> io::Result<()> {
        self.send(FrameKind::Json, &serde_json::to_vec(value)?, fd)
    }

    /// Receives a frame; `None` at the end of the connection.
    ///
    /// # Errors
    /// Those of recvmsg(2); `InvalidData` for what is no frame.
    pub fn receive(&mut self) -> io::Result<Option<Frame>> {
        self.receive_at_most(MAX_FRAME)
    }

    /// Receives a frame of at most `limit` bytes; a longer one is an error.
    ///
    /// # Errors
    /// As [`Wire::receive`].
    pub fn receive_at_most(&mut self, limit: u32) -> io::Result<Option<Frame>> {
        let mut head = [0u8; 5];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(
            &self.stream,
            &mut [IoSliceMut::new(&mut head)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?
        .bytes;
        let mut fd = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                fd = fds.into_iter().next().or(fd);
            }
        }
        if got == 0 {
            return Ok(None);
        }
        self.stream.read_exact(&mut head[got..])?;
        let kind = match head[4] {
            b'J' => FrameKind::Json,
            b'D' => FrameKind::Data,
            other => return Err(bad(&format!("no frame begins with {other}"))),
        };
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        if len > limit.min(MAX_FRAME) {
            return Err(bad("frame too long"));
        }
        let mut bytes = vec![0; len as usize];
        self.stream.read_exact(&mut bytes)?;
        Ok(Some(Frame { kind, bytes, fd }))
    }

    /// Reads a JSON frame's value.
    ///
    /// # Errors
    /// If it is not JSON of that form.
    pub fn parse<T: DeserializeOwned>(frame: &Frame) -> io::Result<T> {
        serde_json::from_slice(&frame.bytes).map_err(|e| bad(&e.to_string()))
    }
}
