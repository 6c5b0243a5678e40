//! A one-way ring of bytes in a shared page, as the console and xenstore use.
//!
//! Our own index is kept privately and only published; the other side's is checked at every use.

use crate::page::{OutOfPage, PageIndex, SharedPage};

/// The location of such a ring in its page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteRingLayout {
    pub(crate) data: usize,
    /// A power of two.
    pub(crate) len: u32,
    pub(crate) consumer: PageIndex,
    pub(crate) producer: PageIndex,
}

/// The other side's index is further from ours than the ring is long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexJumped {
    pub(crate) distance: u32,
}

/// Our writing end.
#[derive(Debug)]
pub(crate) struct Producer {
    layout: ByteRingLayout,
    position: u32,
}

/// Our reading end.
#[derive(Debug)]
pub(crate) struct Consumer {
    layout: ByteRingLayout,
    position: u32,
}

impl Producer {
    /// Goes on where the ring stands.
    pub(crate) fn attach(page: &SharedPage, layout: ByteRingLayout) -> Self {
        Self { layout, position: page.load_index(layout.producer) }
    }

    /// Writes as many of `bytes` as fit, and returns how many.
    pub(crate) fn write(&mut self, page: &SharedPage, bytes: &[u8]) -> Result<usize, IndexJumped> {
        let ByteRingLayout { data, len, consumer, producer } = self.layout;
        let used = self.position.wrapping_sub(page.load_index(consumer));
        let free = len.checked_sub(used).ok_or(IndexJumped { distance: used })?;
        let count = bytes.len().min(free as usize);
        let start = (self.position & (len - 1)) as usize;
        let first = count.min(len as usize - start);
        let copied = page
            .write_bytes(data + start, &bytes[..first])
            .and_then(|()| page.write_bytes(data, &bytes[first..count]));
        debug_assert_eq!(copied, Ok::<_, OutOfPage>(()), "the layout lies in the page");
        self.position = self.position.wrapping_add(count as u32);
        page.store_index(producer, self.position);
        Ok(count)
    }

    /// Has the other side read everything?
    pub(crate) fn is_drained(&self, page: &SharedPage) -> bool {
        page.load_index(self.layout.consumer) == self.position
    }
}

impl Consumer {
    /// Goes on where the ring stands.
    pub(crate) fn attach(page: &SharedPage, layout: ByteRingLayout) -> Self {
        Self { layout, position: page.load_index(layout.consumer) }
    }

    /// Fills as much of `into` as there are bytes, and returns how many.
    pub(crate) fn read(
        &mut self,
        page: &SharedPage,
        into: &mut [u8],
    ) -> Result<usize, IndexJumped> {
        let ByteRingLayout { data, len, consumer, producer } = self.layout;
        let waiting = page.load_index(producer).wrapping_sub(self.position);
        if waiting > len {
            return Err(IndexJumped { distance: waiting });
        }
        let count = into.len().min(waiting as usize);
        let start = (self.position & (len - 1)) as usize;
        let first = count.min(len as usize - start);
        let (head, tail) = into[..count].split_at_mut(first);
        let copied = page.read_bytes(data + start, head).and_then(|()| page.read_bytes(data, tail));
        debug_assert_eq!(copied, Ok::<_, OutOfPage>(()), "the layout lies in the page");
        self.position = self.position.wrapping_add(count as u32);
        page.store_index(consumer, self.position);
        Ok(count)
    }
}
