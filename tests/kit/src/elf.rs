//! ELF images put together by hand, for tests.

/// The contents of a test image.
#[derive(Debug, Clone)]
pub struct TestElf<'a> {
    /// `ET_EXEC` is 2, `ET_DYN` 3.
    pub kind: u16,
    /// `EM_X86_64` is 62.
    pub machine: u16,
    /// Loadable segments: flags, address, offset and size in the file.
    pub segments: Vec<(u32, u64, u64, u64)>,
    /// Sections: name, address and content; they lie behind the code. A `.strtab` comes right after
    /// its `.symtab`.
    pub sections: Vec<(&'a str, u64, &'a [u8])>,
    /// The bytes at [`CODE_OFFSET`].
    pub code: &'a [u8],
}

/// The offset of the code in the file.
pub const CODE_OFFSET: u64 = 0x1000;
/// The address that it is linked at.
pub const CODE_ADDRESS: u64 = 0x20_1000;
/// A build-id's note.
pub const BUILD_ID_NOTE: &[u8] = b"\x04\0\0\0\x04\0\0\0\x03\0\0\0GNU\0\xc0\xff\xee\x01";

impl<'a> TestElf<'a> {
    /// A program with this code and these sections, and a build-id.
    pub fn new(code: &'a [u8], sections: &[(&'a str, u64, &'a [u8])]) -> Self {
        let mut sections = sections.to_vec();
        sections.push((".note.gnu.build-id", 0, BUILD_ID_NOTE));
        TestElf {
            kind: 2,
            machine: 62,
            segments: vec![(5, CODE_ADDRESS, CODE_OFFSET, code.len() as u64)],
            sections,
            code,
        }
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut file = vec![0; CODE_OFFSET as usize];
        file.extend(self.code);
        let mut names = vec![0];
        let mut headers = vec![[0; 64]];
        for (name, address, content) in &self.sections {
            let kind = match *name {
                name if name.starts_with(".note") => 7,
                ".symtab" => 2,
                ".strtab" => 3,
                _ => 1,
            };
            let mut header = section(&mut names, name, kind, *address, file.len(), content);
            match *name {
                ".text" => header[8] = 6,
                // As Unikraft aligns it.
                ".note.Xen" => header[48] = 16,
                ".symtab" => {
                    // The names are in the section behind it.
                    header[40] = headers.len() as u8 + 1;
                    header[56] = 24;
                }
                _ => {}
            }
            headers.push(header);
            file.extend(*content);
        }
        let offset = file.len();
        let last = section(&mut names, ".shstrtab", 3, 0, offset, &[]);
        headers.push(last);
        if let Some(last) = headers.last_mut() {
            last[32..40].copy_from_slice(&(names.len() as u64).to_le_bytes());
        }
        file.extend(&names);
        let table = file.len() as u64;
        headers.iter().for_each(|header| file.extend(header));
        let mut head = b"\x7fELF\x02\x01\x01".to_vec();
        head.resize(16, 0);
        head.extend(self.kind.to_le_bytes());
        head.extend(self.machine.to_le_bytes());
        head.extend(1_u32.to_le_bytes());
        for value in [CODE_ADDRESS, 64, table] {
            head.extend(value.to_le_bytes());
        }
        head.extend(0_u32.to_le_bytes());
        let counts = [self.segments.len() as u16, 64, headers.len() as u16];
        for value in [64, 56, counts[0], counts[1], counts[2], counts[2] - 1] {
            head.extend(value.to_le_bytes());
        }
        for (flags, address, offset, size) in &self.segments {
            head.extend(1_u32.to_le_bytes());
            head.extend(flags.to_le_bytes());
            for value in [offset, address, address, size, size, &0x1000] {
                head.extend(value.to_le_bytes());
            }
        }
        // Tests name a few segments; the code comes behind all of their headers.
        head.truncate(CODE_OFFSET as usize);
        file[..head.len()].copy_from_slice(&head);
        file
    }
}

fn section(
    names: &mut Vec<u8>,
    name: &str,
    kind: u32,
    address: u64,
    offset: usize,
    content: &[u8],
) -> [u8; 64] {
    let mut header = [0; 64];
    header[..4].copy_from_slice(&(names.len() as u32).to_le_bytes());
    names.extend(name.bytes());
    names.push(0);
    header[4..8].copy_from_slice(&kind.to_le_bytes());
    header[16..24].copy_from_slice(&address.to_le_bytes());
    header[24..32].copy_from_slice(&(offset as u64).to_le_bytes());
    header[32..40].copy_from_slice(&(content.len() as u64).to_le_bytes());
    header[48] = 1;
    header
}
