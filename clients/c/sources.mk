# libchunkkv: the client library, static and shared, and the generated messages inside it
chunkkv_SOURCES := $(addprefix clients/c/src/,arena.c cache.c client.c commit.c compress.c control.c dense.c device.c enums.c error.c \
        exchange.c fit.c forward.c job.c layout.c memory.c policy.c recover.c region.c region_sets.c registry.c rescue_sets.c result.c \
        revive.c scratch.c side.c status.c text.c wait.c writing.c) gen/proto/chunkkv.pb-c.c
# what a program that uses it links: our archives, then Debian's libraries
chunkkv_LIBS := chunkkv proto base
chunkkv_LDLIBS := -lzmq -lprotobuf-c
EXTRA_LIBRARIES += chunkkv
PB_SOURCES += $(filter clients/c/src/%,$(chunkkv_SOURCES))

# The shared library: its name changes with the ABI, which clients/c/abi.txt records.  Only what the map names is visible.
chunkkv_SO := $(O)/libchunkkv.so.$(VERSION)
$(chunkkv_SO): $(patsubst %.c,$(O)/%.o,$(chunkkv_SOURCES)) $(O)/libproto.a $(O)/libbase.a clients/c/libchunkkv.map
	@echo "  link  $@"
	@$(CC) -shared $(CKV_LDFLAGS) -Wl,-z,defs -Wl,-z,text -Wl,-soname,libchunkkv.so.0 \
	    -Wl,--version-script,clients/c/libchunkkv.map -o $@ $(filter %.o %.a,$^) $(chunkkv_LDLIBS)
	@ln -sf $(@F) $(O)/libchunkkv.so.0
	@ln -sf libchunkkv.so.0 $(O)/libchunkkv.so
EXTRA_FILES += $(chunkkv_SO)

# The archive that is installed holds what libchunkkv needs of ours, so that a program links one library of this project.
# The loader knows a new library by its cache alone; with DESTDIR this is not the machine that will load it.
.PHONY: install-library
install-library: $(chunkkv_SO) $(patsubst %,$(O)/lib%.a,$(chunkkv_LIBS))
	install -d $(D)/include $(D)/lib/pkgconfig
	install -m 644 clients/c/include/chunkkv.h $(D)/include
	install -m 755 $(chunkkv_SO) $(D)/lib
	ln -sf $(notdir $(chunkkv_SO)) $(D)/lib/libchunkkv.so.0
	ln -sf libchunkkv.so.0 $(D)/lib/libchunkkv.so
	printf '%s\n' 'create $(O)/install.a' $(patsubst %,'addlib $(O)/lib%.a',$(chunkkv_LIBS)) save end | $(AR) -M
	install -m 644 $(O)/install.a $(D)/lib/libchunkkv.a
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' clients/c/chunkkv.pc.in > $(D)/lib/pkgconfig/chunkkv.pc
	$(if $(DESTDIR),,-@PATH="$$PATH:/sbin:/usr/sbin" ldconfig 2>/dev/null || :)

# Manual pages: from the comments of chunkkv.h, the table of options of chunkkvd, and what chunkkvctl --help prints.
.PHONY: install-man
install-man: $(O)/man/chunkkv.7
	install -d $(addprefix $(D)/share/man/man,1 3 7 8)
	for n in 1 3 7 8; do install -m 644 $(O)/man/*.$$n $(D)/share/man/man$$n; done

$(O)/man/chunkkv.7: tools/man clients/c/include/chunkkv.h daemon/options.def $(O)/chunkkvctl
	@echo "  man   $(@D)"
	@tools/man $(VERSION) $(O)/chunkkvctl $(@D)

# What is tested of it beyond tests/sources.mk; = because CHECK_LDLIBS is defined there.
TESTS += test_client_layout test_client_text test_client_threads test_client_large test_client_features test_client_methods test_client_control test_client_device
test_client_layout_SOURCES := tests/test_client_layout.c
test_client_layout_LIBS := $(chunkkv_LIBS)
test_client_layout_LDLIBS = $(chunkkv_LDLIBS) -lcjson $(CHECK_LDLIBS)
test_client_text_SOURCES := tests/test_client_text.c
test_client_text_LIBS := $(chunkkv_LIBS)
test_client_text_LDLIBS = $(chunkkv_LDLIBS) -lcjson $(CHECK_LDLIBS)
define client_test
$(1)_SOURCES := tests/$(1).c tests/support_client.c tools/private.c
$(1)_LIBS := $$(chunkkv_LIBS)
$(1)_LDLIBS = $$(chunkkv_LDLIBS) $$(CHECK_LDLIBS)
$$(O)/$(1): | $$(O)/chunkkvd $$(O)/chunkkv-gate
endef
$(foreach t,test_client_threads test_client_large test_client_features test_client_methods test_client_device,$(eval $(call client_test,$(t))))
$(eval $(call client_test,test_client_control))
test_client_control_LIBS := $(chunkkv_LIBS) kernels base
test_client_control_LDLIBS = $(chunkkv_LDLIBS) -lcjson $(CHECK_LDLIBS)
PB_SOURCES += tests/test_client_control.c
