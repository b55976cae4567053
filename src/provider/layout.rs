//! Fields of a fixed layout: little-endian numbers and arrays, one after the other.

/// Writes fields.
#[derive(Default)]
pub(in crate::provider) struct Fields(Vec<u8>);

impl Fields {
    pub(in crate::provider) fn put(mut self, bytes: &[u8]) -> Fields {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(in crate::provider) fn u8(self, value: u8) -> Fields {
        self.put(&[value])
    }

    pub(in crate::provider) fn u16(self, value: u16) -> Fields {
        self.put(&value.to_le_bytes())
    }

    pub(in crate::provider) fn u32(self, value: u32) -> Fields {
        self.put(&value.to_le_bytes())
    }

    pub(in crate::provider) fn u64(self, value: u64) -> Fields {
        self.put(&value.to_le_bytes())
    }

    pub(in crate::provider) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(in crate::provider) fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Reads fields; `None` where too few bytes are left.
pub(in crate::provider) struct Reader<'a>(pub(in crate::provider) &'a [u8]);

impl<'a> Reader<'a> {
    pub(in crate::provider) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    pub(in crate::provider) fn slice(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    pub(in crate::provider) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(in crate::provider) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(in crate::provider) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(in crate::provider) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(in crate::provider) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
