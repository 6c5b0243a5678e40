#include "hypercall.h"

#include "console.h"

/* The vendor's text in ebx, ecx and edx: XenVMMXenVMM. */
#define XEN_SIGNATURE_EBX 0x566e6558
#define XEN_SIGNATURE_ECX 0x65584d4d
#define XEN_SIGNATURE_EDX 0x4d4d566e

static void cpuid(uint32_t leaf, uint32_t out[4])
{
    __asm__ volatile("cpuid"
                     : "=a"(out[0]), "=b"(out[1]), "=c"(out[2]), "=d"(out[3])
                     : "a"(leaf), "c"(0));
}

void hypercall_start(void)
{
    uint32_t out[4];
    /* Leaves of other hypervisors may come first. */
    for (uint32_t base = 0x40000000; base < 0x40010000; base += 0x100) {
        cpuid(base, out);
        if (out[1] == XEN_SIGNATURE_EBX && out[2] == XEN_SIGNATURE_ECX && out[3] == XEN_SIGNATURE_EDX) {
            uint64_t page = (uint64_t)hypercall_page;
            cpuid(base + 2, out);
            __asm__ volatile("wrmsr"
                             :
                             : "c"(out[1]), "a"((uint32_t)page), "d"((uint32_t)(page >> 32))
                             : "memory");
            return;
        }
    }
    panic("this is not Xen");
}

uint64_t hvm_parameter(uint32_t index)
{
    struct xen_hvm_param argument = { .domain = DOMID_SELF, .index = index };
    check(hypercall(HYPERCALL_HVM_OP, HVMOP_GET_PARAM, (uint64_t)&argument, 0), "HVMOP_get_param");
    return argument.value;
}

void hvm_set_parameter(uint32_t index, uint64_t value)
{
    struct xen_hvm_param argument = { .domain = DOMID_SELF, .index = index, .value = value };
    check(hypercall(HYPERCALL_HVM_OP, HVMOP_SET_PARAM, (uint64_t)&argument, 0), "HVMOP_set_param");
}

void map_xen_page(uint32_t space, void *page)
{
    struct xen_add_to_physmap argument = {
        .domain = DOMID_SELF,
        .space = space,
        .frame = (uint64_t)page / PAGE_SIZE,
    };
    check(hypercall(HYPERCALL_MEMORY_OP, XENMEM_ADD_TO_PHYSMAP, (uint64_t)&argument, 0),
          "XENMEM_add_to_physmap");
}
