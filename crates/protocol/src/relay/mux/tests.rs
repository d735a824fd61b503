//! Compares both sides of a link with a model, for any order of writing, reading, sending and
//! closing.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const CHANNELS: usize = 4;

/// A step of a test. Channels are identified by the order they are opened.
#[derive(Clone, Debug)]
enum Step {
    Open,
    Write(Side, usize, usize),
    Read(Side, usize, usize),
    End(Side, usize),
    Drop(Side, usize),
    Abort(Side, usize),
    /// This number of frames leaves a side.
    Send(Side, usize),
    /// This number of frames from the other side arrives.
    Arrive(Side, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let side = || prop_oneof![Just(Side::Relay), Just(Side::Server)];
    let channel = || 0..CHANNELS;
    prop_oneof![
        2 => Just(Step::Open),
        6 => (side(), channel(), 0..90_usize).prop_map(|(s, c, n)| Step::Write(s, c, n)),
        6 => (side(), channel(), 0..90_usize).prop_map(|(s, c, n)| Step::Read(s, c, n)),
        1 => (side(), channel()).prop_map(|(s, c)| Step::End(s, c)),
        1 => (side(), channel()).prop_map(|(s, c)| Step::Drop(s, c)),
        1 => (side(), channel()).prop_map(|(s, c)| Step::Abort(s, c)),
        6 => (side(), 1..9_usize).prop_map(|(s, n)| Step::Send(s, n)),
        6 => (side(), 1..9_usize).prop_map(|(s, n)| Step::Arrive(s, n)),
    ]
}

/// The actions and observations of one end of a channel.
#[derive(Clone, Default, Debug)]
struct End {
    is_here: bool,
    written: usize,
    read: usize,
    has_ended: bool,
    /// The end was aborted without sending its written data.
    is_aborted: bool,
    saw_end: bool,
    saw_error: Option<io::ErrorKind>,
}

struct World {
    relay: Mux,
    server: Mux,
    windows: (u32, u32),
    /// Frames in transit from the relay, and from the server.
    up: VecDeque<RelayFrame>,
    down: VecDeque<RelayFrame>,
    /// The relay's end and the server's end of each channel, by channel number minus one.
    ends: Vec<(End, End)>,
}

/// Returns the byte that is written at a position.
fn byte(side: Side, channel: usize, at: usize) -> u8 {
    let salt = if side == Side::Relay { 7 } else { 91 };
    u8::try_from((at * 31 + channel * 57 + salt) % 251).expect("less than 251")
}

const fn other(side: Side) -> Side {
    match side {
        Side::Relay => Side::Server,
        Side::Server => Side::Relay,
    }
}

impl World {
    fn new(windows: (u32, u32)) -> Self {
        Self {
            relay: Mux::new(Side::Relay, windows.0, windows.1, CHANNELS),
            server: Mux::new(Side::Server, windows.1, windows.0, CHANNELS),
            windows,
            up: VecDeque::new(),
            down: VecDeque::new(),
            ends: Vec::new(),
        }
    }

    fn mux(&mut self, side: Side) -> &mut Mux {
        match side {
            Side::Relay => &mut self.relay,
            Side::Server => &mut self.server,
        }
    }

    fn end(&mut self, side: Side, channel: usize) -> Option<&mut End> {
        let (relay, server) = self.ends.get_mut(channel)?;
        let end = match side {
            Side::Relay => relay,
            Side::Server => server,
        };
        end.is_here.then_some(end)
    }

    fn id(channel: usize) -> u32 {
        u32::try_from(channel + 1).expect("few")
    }

    fn play(&mut self, step: &Step) {
        match *step {
            Step::Open => {
                if self.ends.len() < CHANNELS {
                    let id = self.relay.open("10.0.0.1:1").expect("there is room");
                    assert_eq!(id, Self::id(self.ends.len()));
                    let relay = End {
                        is_here: true,
                        ..End::default()
                    };
                    self.ends.push((relay, End::default()));
                }
            }
            Step::Write(side, channel, count) => self.write(side, channel, count),
            Step::Read(side, channel, count) => {
                self.read(side, channel, count);
            }
            Step::End(side, channel) => {
                if let Some(end) = self.end(side, channel) {
                    end.has_ended = true;
                    self.mux(side).end(Self::id(channel));
                }
            }
            Step::Drop(side, channel) => {
                if let Some(end) = self.end(side, channel) {
                    end.is_here = false;
                    self.mux(side).drop_end(Self::id(channel));
                }
            }
            Step::Abort(side, channel) => {
                if let Some(end) = self.end(side, channel) {
                    (end.is_here, end.is_aborted) = (false, true);
                    self.mux(side).abort(Self::id(channel), Reset::ByPeer);
                }
            }
            Step::Send(side, count) => self.send(side, count),
            Step::Arrive(side, count) => self.arrive(side, count),
        }
        self.check_bounds();
    }

    fn write(&mut self, side: Side, channel: usize, count: usize) {
        let Some(from) = self.end(side, channel).map(|end| end.written) else {
            return;
        };
        let data: Vec<u8> = (from..from + count)
            .map(|at| byte(side, channel, at))
            .collect();
        let cx = Context::from_waker(Waker::noop());
        let written = self.mux(side).poll_write(Self::id(channel), &cx, &data);
        if let Poll::Ready(Ok(count)) = written {
            self.end(side, channel).expect("here").written += count;
        }
    }

    /// Returns whether there was anything to read, or the end.
    fn read(&mut self, side: Side, channel: usize, count: usize) -> bool {
        let Some(from) = self.end(side, channel).map(|end| end.read) else {
            return false;
        };
        let mut space = vec![0; count + 1];
        let mut buffer = ReadBuf::new(&mut space);
        let cx = Context::from_waker(Waker::noop());
        let read = self
            .mux(side)
            .poll_read(Self::id(channel), &cx, &mut buffer);
        let count = buffer.filled().len();
        let expected: Vec<u8> = (from..from + count)
            .map(|at| byte(other(side), channel, at))
            .collect();
        assert_eq!(buffer.filled(), expected, "channel {channel}");
        let end = self.end(side, channel).expect("here");
        end.read += count;
        match read {
            Poll::Ready(Ok(())) if count > 0 => {
                assert!(
                    !end.saw_end && end.saw_error.is_none(),
                    "data behind the end"
                );
                true
            }
            Poll::Ready(Ok(())) => !std::mem::replace(&mut end.saw_end, true),
            Poll::Ready(Err(error)) => end.saw_error.replace(error.kind()).is_none(),
            Poll::Pending => false,
        }
    }

    fn send(&mut self, side: Side, count: usize) {
        for _ in 0..count {
            let Some(frame) = self.mux(side).next_frame() else {
                return;
            };
            match side {
                Side::Relay => self.up.push_back(frame),
                Side::Server => self.down.push_back(frame),
            }
        }
    }

    fn arrive(&mut self, side: Side, count: usize) {
        for _ in 0..count {
            let wire = match side {
                Side::Relay => &mut self.down,
                Side::Server => &mut self.up,
            };
            let Some(frame) = wire.pop_front() else {
                return;
            };
            let opened = self.mux(side).receive(frame).expect("both keep the rules");
            if let Some((id, peer)) = opened {
                assert_eq!(peer, "10.0.0.1:1");
                let channel = usize::try_from(id).expect("small") - 1;
                self.ends[channel].1.is_here = true;
            }
        }
    }

    fn check_bounds(&self) {
        for (mux, window) in [
            (&self.relay, self.windows.0),
            (&self.server, self.windows.1),
        ] {
            let mut ready: Vec<u32> = mux.ready.iter().copied().collect();
            ready.sort_unstable();
            let count = ready.len();
            ready.dedup();
            assert_eq!(count, ready.len(), "each is ready once");
            for channel in mux.channels.values() {
                assert!(channel.inbound.len() <= window as usize);
                assert!(channel.outbound.len() <= OUTBOUND_MAX);
            }
        }
    }

    /// Transfers and reads everything until nothing changes.
    fn settle(&mut self) {
        loop {
            let mut has_moved = false;
            for side in [Side::Relay, Side::Server] {
                self.send(side, usize::MAX);
                has_moved |= !self.up.is_empty() || !self.down.is_empty();
                self.arrive(other(side), usize::MAX);
                for channel in 0..self.ends.len() {
                    while self.read(side, channel, 1_000) {
                        has_moved = true;
                    }
                }
                self.check_bounds();
            }
            if !has_moved {
                return;
            }
        }
    }

    /// Checks the conditions that hold after everything has arrived.
    fn check_settled(&self) {
        for (relay, server) in &self.ends {
            for (from, to) in [(relay, server), (server, relay)] {
                if !to.is_here {
                    continue;
                }
                // Written data arrives even after a drop, unless the channel was aborted.
                let is_broken_off = from.is_aborted || to.saw_error.is_some();
                if !is_broken_off {
                    assert_eq!(to.read, from.written, "{from:?} {to:?}");
                    assert_eq!(to.saw_end, from.has_ended, "{from:?} {to:?}");
                }
                if from.is_here {
                    assert_eq!(
                        to.saw_error, None,
                        "neither side broke it off: {from:?} {to:?}"
                    );
                } else {
                    let knows = to.saw_end || to.saw_error.is_some();
                    assert!(
                        knows,
                        "the end of the other side is noticed: {from:?} {to:?}"
                    );
                }
                if from.is_aborted && !to.saw_end {
                    assert_eq!(to.saw_error, Some(io::ErrorKind::ConnectionReset));
                }
                if !from.is_here && !from.is_aborted && to.saw_error.is_some() {
                    assert_eq!(to.read, from.written, "its last words came first");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_interleaving_carries_what_was_written(
        windows in (1..70_u32, 1..70_u32),
        steps in vec(step(), 1..150),
    ) {
        let mut world = World::new(windows);
        for step in &steps {
            world.play(step);
        }
        world.settle();
        world.check_settled();
        for channel in 0..world.ends.len() {
            world.play(&Step::Drop(Side::Relay, channel));
            world.play(&Step::Drop(Side::Server, channel));
        }
        world.settle();
        prop_assert_eq!((world.relay.len(), world.server.len()), (0, 0), "nothing is kept");
    }

    #[test]
    fn no_frame_of_a_stranger_panics_or_takes_more_than_a_window(
        frames in vec((1..4_u32, 0..7_u32, 0..90_usize), 1..60),
    ) {
        let mut mux = Mux::new(Side::Server, 50, 50, 2);
        // Opens two channels first, because most frames concern open channels.
        for (channel, kind, size) in [(1, 5, 9), (2, 5, 9)].into_iter().chain(frames) {
            let frame = match kind {
                0 => Some(Frame::Open(String::new())),
                1 => Some(Frame::Data(vec![0; size].into())),
                2 => Some(Frame::Credit(u32::MAX / 90 * u32::try_from(size).expect("small"))),
                3 => Some(Frame::End(true)),
                4 => Some(Frame::Reset(9)),
                5 => Some(Frame::Open("x".repeat(size))),
                _ => None,
            };
            if mux.receive(RelayFrame { channel, frame }).is_err() {
                break;
            }
            for channel in mux.channels.values() {
                prop_assert!(channel.inbound.len() <= 50);
            }
            prop_assert!(mux.len() <= 2 && mux.resets.len() <= 2);
        }
    }
}

#[test]
fn rules_that_are_broken_are_named() {
    let frame = |channel, frame| RelayFrame {
        channel,
        frame: Some(frame),
    };
    let opened = || {
        let mut mux = Mux::new(Side::Server, 10, 10, 1);
        let open = mux.receive(frame(3, Frame::Open("a".to_owned())));
        assert_eq!(open, Ok(Some((3, "a".to_owned()))));
        mux
    };
    let data = |count| Frame::Data(vec![0; count].into());
    assert_eq!(
        opened().receive(frame(3, data(11))),
        Err(MuxError::Overrun(3))
    );
    assert_eq!(
        opened().receive(frame(4, data(1))),
        Err(MuxError::UnknownChannel(4))
    );
    // A frame for a skipped or closed channel is not a violation.
    assert_eq!(opened().receive(frame(2, data(1))), Ok(None));
    assert_eq!(
        opened().receive(frame(3, Frame::Open(String::new()))),
        Err(MuxError::CannotOpen(3))
    );
    assert_eq!(
        opened().receive(frame(3, Frame::Credit(u32::MAX))),
        Err(MuxError::TooMuchCredit(3))
    );
    let mut mux = opened();
    assert_eq!(mux.receive(frame(3, Frame::End(true))), Ok(None));
    assert_eq!(mux.receive(frame(3, data(1))), Err(MuxError::BehindEnd(3)));
    let mut mux = opened();
    // The relay may not know yet that the first channel is closed, so it gets a reset.
    assert_eq!(mux.receive(frame(4, Frame::Open(String::new()))), Ok(None));
    assert_eq!(
        mux.receive(frame(5, Frame::Open(String::new()))),
        Err(MuxError::TooManyChannels)
    );
    let reset = Frame::Reset(Reset::Dropped.into());
    assert_eq!(mux.next_frame(), Some(frame(4, reset)));
    let nothing = RelayFrame::default();
    assert_eq!(opened().receive(nothing), Err(MuxError::UnknownFrame));
    let mut relay = Mux::new(Side::Relay, 10, 10, 1);
    assert_eq!(
        relay.receive(frame(1, Frame::Open(String::new()))),
        Err(MuxError::CannotOpen(1))
    );
}

#[test]
fn channels_take_turns_and_a_full_one_waits_alone() {
    let mut relay = Mux::new(Side::Relay, 50_000, 50_000, 3);
    let cx = Context::from_waker(Waker::noop());
    let ids: Vec<u32> = (0..3)
        .map(|_| relay.open("x").expect("there is room"))
        .collect();
    assert_eq!(relay.open("x"), None, "as many as allowed");
    for id in &ids {
        let written = relay.poll_write(*id, &cx, &[0; OUTBOUND_MAX + 1]);
        assert!(matches!(written, Poll::Ready(Ok(OUTBOUND_MAX))));
        assert!(relay.poll_write(*id, &cx, &[0]).is_pending());
    }
    let mut sent: Vec<(u32, usize)> = Vec::new();
    while let Some(frame) = relay.next_frame() {
        if let Some(Frame::Data(data)) = frame.frame {
            sent.push((frame.channel, data.len()));
        }
    }
    let order: Vec<u32> = sent.iter().map(|(id, _)| *id).collect();
    assert_eq!(order, [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3]);
    let total: usize = sent.iter().map(|(_, count)| count).sum();
    assert_eq!(total, 3 * 50_000, "as far as the credit goes");
    // Credit for one channel lets only that channel continue.
    let credit = RelayFrame {
        channel: 2,
        frame: Some(Frame::Credit(100)),
    };
    relay.receive(credit).expect("allowed");
    let frame = relay.next_frame().expect("more data");
    assert!(
        matches!(frame, RelayFrame { channel: 2, frame: Some(Frame::Data(data)) } if data.len() == 100)
    );
    assert_eq!(relay.next_frame(), None);
}

#[test]
fn a_lost_connection_breaks_all_channels_behind_what_has_arrived() {
    let mut server = Mux::new(Side::Server, 10, 10, 2);
    let cx = Context::from_waker(Waker::noop());
    for (channel, frame) in [
        (1, Frame::Open(String::new())),
        (1, Frame::Data(b"abc"[..].into())),
        (2, Frame::Open(String::new())),
        (2, Frame::End(true)),
    ] {
        let frame = Some(frame);
        server
            .receive(RelayFrame { channel, frame })
            .expect("allowed");
    }
    server.drop_end(2);
    server.lose();
    assert_eq!(server.len(), 1, "one has gone before");
    let mut space = [0; 8];
    let mut buffer = ReadBuf::new(&mut space);
    let read = server.poll_read(1, &cx, &mut buffer);
    assert!(matches!(read, Poll::Ready(Ok(()))));
    assert_eq!(buffer.filled(), b"abc");
    let Poll::Ready(Err(error)) = server.poll_read(1, &cx, &mut buffer) else {
        panic!("it is lost");
    };
    // This is not a reset, because the worker behind the dead relay is alive.
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    assert!(matches!(
        server.poll_write(1, &cx, b"x"),
        Poll::Ready(Err(_))
    ));
    assert_eq!(server.next_frame(), None);
    server.drop_end(1);
    assert_eq!(server.len(), 0);
    assert_eq!(Mux::new(Side::Server, 1, 1, 1).open("x"), None);
}
