//! A queue of frames in its own memory.

/// The longest frame: 1500 bytes after the Ethernet header.
pub(super) const FRAME: usize = 1514;
/// The maximum number of queued frames.
const FRAMES: usize = 16;

/// A queue of frames; an empty new queue is all zeros.
pub(super) struct Queue {
    first: usize,
    count: usize,
    lengths: [usize; FRAMES],
    frames: [[u8; FRAME]; FRAMES],
}

impl Queue {
    pub(super) const fn new() -> Self {
        Self { first: 0, count: 0, lengths: [0; FRAMES], frames: [[0; FRAME]; FRAMES] }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.count == FRAMES
    }

    /// Appends a frame of `length` bytes and returns it to be filled; `None` if the queue is full
    /// or the frame is too long.
    pub(super) fn push(&mut self, length: usize) -> Option<&mut [u8]> {
        if self.is_full() || length > FRAME {
            return None;
        }
        let place = (self.first + self.count) % FRAMES;
        self.count += 1;
        self.lengths[place] = length;
        self.frames[place].get_mut(..length)
    }

    /// The oldest frame.
    pub(super) fn first(&self) -> Option<&[u8]> {
        let frame = self.frames.get(self.first)?.get(..self.lengths[self.first])?;
        (!self.is_empty()).then_some(frame)
    }

    /// Removes the oldest frame.
    pub(super) fn forget_first(&mut self) {
        if !self.is_empty() {
            self.first = (self.first + 1) % FRAMES;
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::boxed::Box;
    use std::vec::Vec;

    use super::*;

    /// The length and the last byte of the first frame.
    fn pop(queue: &mut Queue) -> Option<(usize, u8)> {
        let seen = queue.first().map(|frame| (frame.len(), frame[frame.len() - 1]));
        queue.forget_first();
        seen
    }

    /// Frames keep their order and lengths when the ring wraps, and a frame beyond its capacity is
    /// refused.
    #[test]
    fn frames_come_out_as_they_went_in() {
        let mut queue = Box::new(Queue::new());
        for round in 0..3_usize {
            let lengths: Vec<usize> = (0..FRAMES).map(|index| 1 + index * 100 + round).collect();
            for length in &lengths {
                queue.push(*length).into_iter().for_each(|frame| frame.fill(*length as u8));
            }
            assert!(queue.is_full() && queue.push(1).is_none());
            // The next round begins at another place.
            assert_eq!(pop(&mut queue), Some((1 + round, (1 + round) as u8)));
            queue.push(7).into_iter().for_each(|frame| frame.fill(7));
            for length in &lengths[1..] {
                assert_eq!(pop(&mut queue), Some((*length, *length as u8)));
            }
            assert_eq!(pop(&mut queue), Some((7, 7)));
            assert!(queue.is_empty() && pop(&mut queue).is_none());
        }
        assert!(queue.push(FRAME + 1).is_none() && queue.is_empty());
    }
}
