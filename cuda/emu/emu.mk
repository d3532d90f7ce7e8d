# emu.mk: the rules of build.sh, which sets EMU (this folder), OUT and KERNELS (absolute paths of .cu files).

CXX ?= g++
O   := $(OUT)/obj
LIB := $(OUT)/libcuda.so.1

COMMON := $(EMU_FLAGS) -std=c++17 -O2 -g1 -fPIC -fvisibility=hidden -pthread -I$(EMU)

# Kernels. Nothing is contracted or reassociated: what the device rounds, this rounds. The checks stop a kernel at an
# address that is not a multiple of its type's size, which a device refuses and this machine would not, at an index past
# an array, and at a shift or division without a meaning. fault.cc has what they call.
DEVICE := $(COMMON) -DSLUICE_EMU -x c++ -include $(EMU)/device_emu.h -I$(EMU)/../kernels -ffp-contract=off -fno-fast-math \
	-fno-math-errno -fno-strict-aliasing -fno-exceptions -fno-rtti -Wall -Wextra -Wno-unknown-pragmas -Wno-unused-function \
	-Wno-unused-parameter -Wno-unused-but-set-variable \
	-fsanitize=alignment,bounds,shift-exponent,integer-divide-by-zero -fno-sanitize-recover=all

HOST := $(filter-out $(EMU)/%_test.cc,$(wildcard $(EMU)/*.cc))
OBJ  := $(patsubst $(EMU)/%.cc,$(O)/%.o,$(HOST)) $(foreach k,$(KERNELS),$(O)/$(notdir $(k)).o)

all: $(LIB) $(OUT)/libcuda.so

# Moved into place whole, since a program may be starting meanwhile.
$(LIB): $(OBJ) $(O)/list
	$(CXX) -shared -pthread -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -Wl,-z,defs -Wl,-z,now -o $@.new $(OBJ) -ldl
	mv -f $@.new $@
	echo "built $@ ($(words $(KERNELS)) kernel sources)"

$(OUT)/libcuda.so: $(LIB)
	ln -sf libcuda.so.1 $@

# Linked anew when the list of objects is another, not only when one of them is.
$(O)/list: force | $(O)
	echo '$(OBJ)' | cmp -s - $@ || echo '$(OBJ)' >$@

$(O)/%.o: $(EMU)/%.cc $(EMU)/emu.mk | $(O)
	$(CXX) $(COMMON) -Wall -Wextra -MMD -MP -c $< -o $@ || { echo "build.sh: $< does not compile" >&2; exit 1; }

define kernel
$(O)/$(notdir $(1)).o: $(1) $(EMU)/emu.mk $(EMU)/scan.sh | $(O)
	$(CXX) $(DEVICE) -DSLUICE_EMU_SCAN -E -P $(1) >$(O)/$(notdir $(1)).i || { echo "build.sh: $(1) does not compile" >&2; exit 1; }
	sh $(EMU)/scan.sh $(1) <$(O)/$(notdir $(1)).i >$(O)/$(notdir $(1)).cc || exit 1
	$(CXX) $(DEVICE) -MMD -MP -MT $$@ -MF $(O)/$(notdir $(1)).d -c $(O)/$(notdir $(1)).cc -o $$@ || { echo "build.sh: $(1) does not compile" >&2; exit 1; }
endef
$(foreach k,$(KERNELS),$(eval $(call kernel,$(k))))

$(O):
	mkdir -p $@

.PHONY: all force
-include $(wildcard $(O)/*.d)
