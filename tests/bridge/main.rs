//! Tests that a program linked to libibverbs in the usual way and this crate can share a protection
//! domain.
#![expect(unsafe_code, reason = "calls libibverbs as a program in C does")]
#![allow(clippy::multiple_unsafe_ops_per_block, reason = "it is C in Rust")]

use std::ffi::CStr;
use std::ptr;

use ibverbs_sys::*;
use support::device::adapter;
use tokio_doca::{
    Buf, Device, ErrorKind, Mmap, Mode, Rdma, WorkQ,
    mem::{Access, BufInventory, RemoteMmap},
};

const LEN: usize = 4096;

/// The objects of the program: an open device and a protection domain.
struct Program {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
}

impl Program {
    /// Opens a device by name.
    fn open(name: &str) -> Program {
        // SAFETY: the list ends with null, and is freed after the device was opened.
        unsafe {
            let list = ibv_get_device_list(ptr::null_mut());
            assert!(!list.is_null());
            let mut at = list;
            while !(*at).is_null() && CStr::from_ptr(ibv_get_device_name(*at)).to_str() != Ok(name)
            {
                at = at.add(1);
            }
            let context = ibv_open_device(*at);
            ibv_free_device_list(list);
            let pd = ibv_alloc_pd(context);
            assert!(!pd.is_null());
            Program { context, pd }
        }
    }

    /// Writes from the crate's memory to the program's own, by a queue pair that is connected to
    /// itself.
    fn writes(&self, from: (u64, u32), to: &mut [u8]) {
        let remote =
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        // SAFETY: follows the man pages; every object is destroyed here.
        unsafe {
            let mr = ibv_reg_mr(self.pd, to.as_mut_ptr().cast(), to.len(), remote.0 as i32);
            assert!(!mr.is_null());
            let cq = ibv_create_cq(self.context, 4, ptr::null_mut(), ptr::null_mut(), 0);
            let mut init = ibv_qp_init_attr {
                send_cq: cq,
                recv_cq: cq,
                qp_type: ibv_qp_type::IBV_QPT_RC,
                sq_sig_all: 1,
                ..Default::default()
            };
            init.cap.max_send_wr = 1;
            init.cap.max_send_sge = 1;
            init.cap.max_recv_wr = 1;
            init.cap.max_recv_sge = 1;
            let qp = ibv_create_qp(self.pd, &mut init);
            assert!(!qp.is_null());
            self.connect(qp, remote);
            let mut sge = ibv_sge {
                addr: from.0,
                length: to.len() as u32,
                lkey: from.1,
            };
            let mut wr = ibv_send_wr {
                sg_list: &mut sge,
                num_sge: 1,
                opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE,
                ..Default::default()
            };
            wr.wr.rdma.remote_addr = to.as_ptr() as u64;
            wr.wr.rdma.rkey = (*mr).rkey;
            let ops = (*self.context).ops;
            let mut bad = ptr::null_mut();
            assert_eq!(ops.post_send.unwrap()(qp, &mut wr, &mut bad), 0);
            let mut wc = std::mem::zeroed::<ibv_wc>();
            while ops.poll_cq.unwrap()(cq, 1, &mut wc) == 0 {
                std::thread::yield_now();
            }
            assert!(wc.is_valid(), "{:?}", wc.error());
            assert_eq!(ibv_destroy_qp(qp), 0);
            assert_eq!(ibv_destroy_cq(cq), 0);
            assert_eq!(ibv_dereg_mr(mr), 0);
        }
    }

    /// # Safety
    ///
    /// `qp` is a queue pair of this program in the state RESET.
    unsafe fn connect(&self, qp: *mut ibv_qp, remote: ibv_access_flags) {
        use ibv_qp_attr_mask as m;
        // SAFETY: the caller guarantees that `qp` is valid.
        unsafe {
            let mut attr = ibv_qp_attr {
                qp_state: ibv_qp_state::IBV_QPS_INIT,
                port_num: 1,
                qp_access_flags: remote.0,
                ..Default::default()
            };
            let mask =
                m::IBV_QP_STATE | m::IBV_QP_PKEY_INDEX | m::IBV_QP_PORT | m::IBV_QP_ACCESS_FLAGS;
            assert_eq!(ibv_modify_qp(qp, &mut attr, mask.0 as i32), 0);
            let mut port = std::mem::zeroed::<ibv_port_attr>();
            assert_eq!(ibv_query_port(self.context, 1, (&raw mut port).cast()), 0);
            let mut attr = ibv_qp_attr {
                qp_state: ibv_qp_state::IBV_QPS_RTR,
                path_mtu: IBV_MTU_1024,
                dest_qp_num: (*qp).qp_num,
                min_rnr_timer: 12,
                ..Default::default()
            };
            attr.ah_attr.dlid = port.lid;
            attr.ah_attr.port_num = 1;
            attr.ah_attr.is_global = 1;
            // Index 1 is the IPv4 address of Soft-RoCE's network device. Index 0 is its link-local
            // address, which a dummy device does not route.
            attr.ah_attr.grh.sgid_index = 1;
            assert_eq!(
                ibv_query_gid(self.context, 1, 1, &mut attr.ah_attr.grh.dgid),
                0
            );
            let mask = m::IBV_QP_STATE
                | m::IBV_QP_AV
                | m::IBV_QP_PATH_MTU
                | m::IBV_QP_DEST_QPN
                | m::IBV_QP_RQ_PSN
                | m::IBV_QP_MAX_DEST_RD_ATOMIC
                | m::IBV_QP_MIN_RNR_TIMER;
            assert_eq!(ibv_modify_qp(qp, &mut attr, mask.0 as i32), 0);
            let mut attr = ibv_qp_attr {
                qp_state: ibv_qp_state::IBV_QPS_RTS,
                timeout: 14,
                retry_cnt: 6,
                rnr_retry: 6,
                ..Default::default()
            };
            let mask = m::IBV_QP_STATE
                | m::IBV_QP_TIMEOUT
                | m::IBV_QP_RETRY_CNT
                | m::IBV_QP_RNR_RETRY
                | m::IBV_QP_SQ_PSN
                | m::IBV_QP_MAX_QP_RD_ATOMIC;
            assert_eq!(ibv_modify_qp(qp, &mut attr, mask.0 as i32), 0);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: all objects of the domain are destroyed; otherwise these calls fail.
        let closed = unsafe { (ibv_dealloc_pd(self.pd), ibv_close_device(self.context)) };
        assert_eq!(closed, (0, 0), "the crate left something in the domain");
    }
}

/// Returns new memory and a `Buf` over it.
fn memory(device: &Device, access: Access) -> (Mmap, Buf) {
    let mmap = Mmap::builder()
        .device(device)
        .access(Access::LOCAL_READ_WRITE | access);
    let mmap = mmap.alloc(LEN).unwrap();
    let buf = BufInventory::with_capacity(1).buf(&mmap, ..).unwrap();
    (mmap, buf)
}

#[test]
#[ignore = "needs DOCA_VERBS_DEVICE"]
fn a_program_on_libibverbs_and_this_crate_share_a_protection_domain() {
    let program = Program::open(&adapter().expect("DOCA_VERBS_DEVICE names an adapter"));
    // SAFETY: the domain was made by the system's libibverbs, and outlives the device.
    let device = unsafe { Device::from_ibv_pd(program.pd) }.unwrap();
    assert_eq!(device.ibv_pd().unwrap().as_ptr(), program.pd);
    let (_mmap, src) = memory(&device, Access::empty());
    let bytes: Vec<u8> = (0..LEN).map(|at| at as u8).collect();
    src.extend_from_slice(&bytes).unwrap();

    // The program's queue pair writes from the crate's memory, by that memory's lkey.
    let mut theirs = vec![0; LEN];
    let key = src.mkey(&device).unwrap();
    program.writes((src.as_ptr().as_ptr() as u64, key), &mut theirs);
    assert_eq!(theirs, bytes);

    // The crate's own contexts work in the same domain too.
    let workq = WorkQ::builder().mode(Mode::BusyPoll).build().unwrap();
    let [one, other] = [(); 2].map(|()| {
        let builder = Rdma::builder(&device).permissions(Access::RDMA_WRITE);
        builder.attach(&workq).unwrap()
    });
    let blobs = [one.export().unwrap(), other.export().unwrap()];
    let (mmap, dst) = memory(&device, Access::RDMA_WRITE);
    let blob = mmap.export_rdma(&device).unwrap();
    workq.block_on(async {
        one.connect(&blobs[1]).await.unwrap();
        other.connect(&blobs[0]).await.unwrap();
        let remote = RemoteMmap::from_export(&device, &blob).await.unwrap();
        one.write(&src, &remote.buf(..).unwrap()).await.unwrap();
    });
    let mut found = vec![0; LEN];
    dst.set_data(0, LEN).unwrap();
    dst.copy_out(0, &mut found).unwrap();
    assert_eq!(found, bytes);
}

#[test]
fn only_an_adapter_has_a_protection_domain() {
    let soft = tokio_doca::soft::Soft::builder()
        .build()
        .open("pf0")
        .unwrap();
    assert_eq!(soft.pd().unwrap_err().kind(), ErrorKind::NotSupported);
    let (_mmap, buf) = memory(&soft, Access::empty());
    assert_eq!(buf.mkey(&soft).unwrap_err().kind(), ErrorKind::NotSupported);
    // SAFETY: a null pointer is refused.
    let error = unsafe { Device::from_pd(ptr::null_mut()) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidValue);
}
